#pragma once

#include "absl/time/time.h"

namespace gradwire {

// Decides when the progress of a piece of work is printed. Pure: no clock, no output.
//
// A moving line appears after kDrawAfter and is drawn again every kRedraw at most. In a log the first line
// comes after kLogAfter, so work that ends sooner has none. Further lines come every kLogAfter in the first
// kOftenFor, and every kLogLater after that.
class ProgressSchedule {
 public:
  static constexpr absl::Duration kDrawAfter = absl::Seconds(1);
  static constexpr absl::Duration kRedraw = absl::Seconds(1);
  static constexpr absl::Duration kLogAfter = absl::Seconds(10);
  static constexpr absl::Duration kOftenFor = absl::Minutes(1);
  static constexpr absl::Duration kLogLater = absl::Minutes(1);

  // The work begins at `began`.
  explicit ProgressSchedule(absl::Time began)
      : began_(began), next_draw_(began + kDrawAfter), next_log_(began + kLogAfter) {}

  // When the next output is due, on a moving line or in a log.
  absl::Time next(bool moving) const { return moving ? next_draw_ : next_log_; }

  // Whether to print now. If so, the output counts as printed.
  bool due(bool moving, absl::Time now) {
    if (now < next(moving)) return false;
    if (moving) {
      next_draw_ = now + kRedraw;
      return true;
    }
    next_log_ = now + (now - began_ < kOftenFor ? kLogAfter : kLogLater);
    return true;
  }

  absl::Time began() const { return began_; }

 private:
  const absl::Time began_;
  absl::Time next_draw_;
  absl::Time next_log_;
};

}  // namespace gradwire
