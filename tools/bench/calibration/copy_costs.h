#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/copy/copy_methods.h"

// The costs of each method of a copy on this machine, and the method that Gradwire chooses by measuring.
namespace gradwire::bench {

enum class ReaderPlace {
  kSameCore,   // The reader of a copy runs on the writer's core.
  kOtherCore,  // It runs on another core, and polls for the copy.
};

// The costs of copies of one size.
struct CopyCosts {
  // Medians, in microseconds.
  struct Cost {
    double copy_us = 0;
    // The time that the reader needs to read every byte of the copy.
    double read_us = 0;
  };

  std::size_t bytes = 0;
  // Indexed by CopyMethod; empty for a method that this processor does not have.
  std::array<std::optional<Cost>, kCopyMethods> costs;
  // The method that SizedCopyChoice, which sees only the time to copy, ordered most often once it had
  // measured all methods, and the part of the copies that used it (0 to 1).
  CopyMethod chosen = CopyMethod::kMemcpy;
  double chosen_part = 0;
};

// Measures copies of these sizes, in bytes. Takes about 0.1 s for each size. Returns nothing for kOtherCore
// if this thread may run only on one core.
std::vector<CopyCosts> measure_copies(ReaderPlace place, const std::vector<std::size_t>& sizes);

// Returns a table with one row for each size.
std::string text_table(ReaderPlace place, const std::vector<CopyCosts>& costs);

// Measures copies of 4 KiB to 16 MiB for both places, and returns both tables.
std::string calibration_text();

}  // namespace gradwire::bench
