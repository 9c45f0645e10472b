#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// Counts durations from 1 ns to hours in buckets. The width of a bucket is a sixteenth of its power of two
// (an error of about 6 %). Thread-safe and wait-free.
class LatencyHistogram {
 public:
  void record_ns(int64_t nanoseconds);
  void record(absl::Duration duration) { record_ns(absl::ToInt64Nanoseconds(duration)); }
  // The duration that `fraction` (0..1) of the recorded durations do not exceed; zero if nothing was
  // recorded.
  absl::Duration quantile(double fraction) const;

 private:
  static constexpr int kSubBuckets = 16;
  static constexpr int kBuckets = 48 * kSubBuckets;

  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
};

}  // namespace gradwire
