#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/tools/bench/suites/cases.h"

namespace gradwire::bench {

// What was asked for, as given on the command line.
struct RawOptions {
  std::vector<std::string> suites;
  std::vector<std::string> peers;
  std::vector<std::string> cases;
  std::vector<std::string> transports;
  double seconds = 1;
  int rounds = 5;
  bool floors = true;
};

struct BenchOptions {
  std::vector<std::string> suites;
  std::vector<std::string> peers;
  std::vector<std::string> transports;
  // In the order of cases(); sizes that are not there may be asked for, such as echo_256KiB.
  std::vector<CaseSpec> cases;
  double seconds = 1;
  int rounds = 5;
  bool floors = true;
};

// Checks and completes. InvalidArgument names what is unknown and lists what there is.
absl::StatusOr<BenchOptions> complete_options(const RawOptions& raw);

}  // namespace gradwire::bench
