#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::simulation {

// What happened, line by line, for people. Schedules are run without one, and run again with one when they
// fail.
class Trace {
 public:
  template <class... Parts>
  void line(Time now, const Parts&... parts) {
    lines_.push_back(absl::StrCat(absl::Dec(now / 1000, absl::kSpacePad8), ".",
                                  absl::Dec(now % 1000, absl::kZeroPad3), " ms  ", parts...));
  }
  // More about the last line.
  template <class... Parts>
  void detail(const Parts&... parts) {
    lines_.push_back(absl::StrCat("                    ", parts...));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace gradwire::simulation
