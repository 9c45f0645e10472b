#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/tools/bench/suites/cases.h"

namespace gradwire::bench {

// The options as given on the command line.
struct RawOptions {
  std::vector<std::string> suites;
  std::vector<std::string> peers;
  std::vector<std::string> cases;
  std::vector<std::string> transports;
  double seconds = 1;
  int rounds = 5;
  bool floors = true;
};

// The options after complete_options().
struct BenchOptions {
  std::vector<std::string> suites;
  std::vector<std::string> peers;
  std::vector<std::string> transports;
  // The cases to run, in the order of cases(); then the requested cases with other sizes or intervals, such
  // as echo_256KiB and add2_every_1ms.
  std::vector<CaseSpec> cases;
  double seconds = 1;
  int rounds = 5;
  bool floors = true;
};

// Checks and completes the options. InvalidArgument if a name is unknown (the message lists the known ones)
// or a number is out of range.
absl::StatusOr<BenchOptions> complete_options(const RawOptions& raw);

}  // namespace gradwire::bench
