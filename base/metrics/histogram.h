#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/base/metrics/counter.h"
#include "gradwire/base/metrics/thread_slot.h"

namespace gradwire::metrics {

// Number of buckets: 1 us, 2 us, 4 us, ... 67 s, and all longer durations.
inline constexpr std::size_t kBuckets = 28;

// The largest duration of a bucket, which belongs to it. The last bucket has none: InfiniteDuration().
absl::Duration bucket_bound(std::size_t bucket);

// The contents of a histogram at one moment.
struct HistogramValues {
  std::array<uint64_t, kBuckets> counts = {};
  // The sum of all durations, in nanoseconds.
  uint64_t sum_ns = 0;

  uint64_t count() const;
  // The duration that `fraction` (0..1) of the recorded ones do not exceed, estimated inside its bucket, so
  // it may be wrong by a factor of two. Zero if nothing was recorded. For durations over 67 s: 67 s.
  absl::Duration quantile(double fraction) const;
  // Adds the contents of another histogram.
  void add(const HistogramValues& other);
};

// Counts durations in buckets whose bounds double. Thread-safe and wait-free, as Counter.
class Histogram {
 public:
  // A negative duration, which a clock that was set back causes, counts as zero.
  void record_ns(int64_t nanoseconds) { record_in(thread_slot(), nanoseconds); }
  // As record_ns(), with the calling thread's thread_slot().
  void record_in(std::size_t slot, int64_t nanoseconds) {
    const uint64_t ns = nanoseconds > 0 ? static_cast<uint64_t>(nanoseconds) : 0;
    Cells& cells = cells_[slot];
    add_to(cells.counts[bucket_of(ns)], slot, 1);
    add_to(cells.sum_ns, slot, ns);
  }
  void record(absl::Duration duration) { record_ns(absl::ToInt64Nanoseconds(duration)); }
  HistogramValues values() const;

  static std::size_t bucket_of(uint64_t ns) {
    const auto bucket = static_cast<std::size_t>(std::bit_width(ns == 0 ? 0 : (ns - 1) / 1'000));
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

 private:
  // The sum is in the cache line of the buckets up to 64 us.
  struct alignas(64) Cells {
    std::atomic<uint64_t> sum_ns{0};
    std::array<std::atomic<uint64_t>, kBuckets> counts{};
  };
  std::array<Cells, kSlots> cells_;
};

}  // namespace gradwire::metrics
