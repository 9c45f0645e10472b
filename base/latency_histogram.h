#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// Counts durations in buckets whose width is a sixteenth of their power of two (about 6 % error), from 1 ns
// to hours. Thread-safe and wait-free.
class LatencyHistogram {
 public:
  void record(absl::Duration duration);
  // The duration that `fraction` (0..1) of those recorded do not exceed; zero when there are none.
  absl::Duration quantile(double fraction) const;

 private:
  static constexpr int kSubBuckets = 16;
  static constexpr int kBuckets = 48 * kSubBuckets;

  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
};

}  // namespace gradwire
