#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Decides when metrics are exported: once in an interval, and less and less often while exports fail. A pure
// state machine. Not thread-safe.
class ExportSchedule {
 public:
  // The longest pause after failures, unless the interval is longer.
  static constexpr absl::Duration kLongestPause = absl::Minutes(2);

  explicit ExportSchedule(absl::Duration interval) : interval_(interval), pause_(interval) {}

  // `random`: in [0, 1), another one for each worker. All workers of a job start at the same time, and lose
  // and find the collector at the same time; this spreads their exports.

  // The pause before the first export: a part of the interval.
  absl::Duration first(double random) const { return interval_ * random; }
  // The time from the beginning of an export to that of the next one: the interval after a success; the
  // interval, doubled with each failure, after failures, less a random part of at most a quarter.
  absl::Duration after(bool succeeded, double random) {
    if (succeeded) {
      pause_ = interval_;
      return interval_;
    }
    pause_ = std::min(pause_ * 2, std::max(interval_, kLongestPause));
    return std::max(interval_, pause_ * (1 - random / 4));
  }

 private:
  const absl::Duration interval_;
  absl::Duration pause_;
};

}  // namespace gradwire::rpc
