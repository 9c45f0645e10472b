#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::simulation {

// A readable log of the events of one schedule. simulation_test runs schedules without a trace; the program
// replay runs a failed schedule again with a trace.
class Trace {
 public:
  template <class... Parts>
  void line(Time now, const Parts&... parts) {
    lines_.push_back(absl::StrCat(absl::Dec(now / 1000, absl::kSpacePad8), ".",
                                  absl::Dec(now % 1000, absl::kZeroPad3), " ms  ", parts...));
  }
  // Adds an indented line with details of the last line.
  template <class... Parts>
  void detail(const Parts&... parts) {
    lines_.push_back(absl::StrCat("                    ", parts...));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace gradwire::simulation
