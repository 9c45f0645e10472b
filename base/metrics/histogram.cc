#include "gradwire/base/metrics/histogram.h"

#include <algorithm>
#include <cmath>

namespace gradwire::metrics {

absl::Duration bucket_bound(std::size_t bucket) {
  return bucket + 1 < kBuckets ? absl::Microseconds(int64_t{1} << bucket) : absl::InfiniteDuration();
}

uint64_t HistogramValues::count() const {
  uint64_t sum = 0;
  for (const uint64_t count : counts) sum += count;
  return sum;
}

absl::Duration HistogramValues::quantile(double fraction) const {
  const uint64_t total = count();
  if (total == 0) return absl::ZeroDuration();
  const double wanted = std::max(1.0, std::ceil(static_cast<double>(total) * std::clamp(fraction, 0.0, 1.0)));
  double seen = 0;
  for (std::size_t bucket = 0; bucket + 1 < kBuckets; ++bucket) {
    const auto here = static_cast<double>(counts[bucket]);
    if (seen + here >= wanted) {
      const absl::Duration upper = bucket_bound(bucket);
      const absl::Duration lower = bucket == 0 ? absl::ZeroDuration() : bucket_bound(bucket - 1);
      return lower + (upper - lower) * ((wanted - seen) / here);
    }
    seen += here;
  }
  return bucket_bound(kBuckets - 2);
}

void HistogramValues::add(const HistogramValues& other) {
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) counts[bucket] += other.counts[bucket];
  sum_ns += other.sum_ns;
}

HistogramValues Histogram::values() const {
  HistogramValues values;
  for (const Cells& cells : cells_) {
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
      values.counts[bucket] += cells.counts[bucket].load(std::memory_order_relaxed);
    }
    values.sum_ns += cells.sum_ns.load(std::memory_order_relaxed);
  }
  return values;
}

}  // namespace gradwire::metrics
