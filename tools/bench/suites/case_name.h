#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gradwire::bench {

// The parts of a case's name. "echo_64KiB" is the operation "echo" with 65536 bytes; "all_reduce_2_ranks_8B"
// is the operation "all_reduce_2_ranks" with 8 bytes; "add2" is an operation without a size; "all_to_all_8"
// is the operation "all_to_all" with the count 8. What the caller does between two calls stands after the
// size: "add2_cold" and "push_pull_1MiB_every_2ms_4_per_core" are the operations "add2" and "push_pull".
struct CaseName {
  std::string operation;
  int64_t bytes = 0;
  int64_t count = 0;
  // "_cold": the caller is idle for this time before each call.
  int64_t idle_us = 0;
  // "_every_2ms": the caller computes for this time before each call. At most a second.
  int64_t compute_us = 0;
  // "_4_per_core", only after "_every_": the number of processes for each of the two cores, at most 32.
  int per_core = 1;

  // The operation and how its calls follow one another, without numbers: "add2", "add2_cold", "add2_every",
  // "add2_every_per_core". RoleSpec::operations contains such names.
  std::string family() const;
};

// A name without a valid size or count is an operation as a whole.
CaseName parse_case(absl::string_view name);

}  // namespace gradwire::bench
