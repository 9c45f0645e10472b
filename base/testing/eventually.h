#pragma once

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gradwire {

// For tests: polls `holds` until it returns true, at most for `timeout`. Returns whether it did. Use it only
// for a state that no event announces, such as a counter of another agent or a line in a log.
inline bool eventually(const std::function<bool()>& holds, absl::Duration timeout = absl::Seconds(60)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace gradwire
