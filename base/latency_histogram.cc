#include "gradwire/base/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace gradwire {

void LatencyHistogram::record_ns(int64_t nanoseconds) {
  const auto ns = static_cast<uint64_t>(std::max<int64_t>(1, nanoseconds));
  const int exponent = std::bit_width(ns) - 1;
  const int sub = exponent >= 4 ? static_cast<int>((ns >> (exponent - 4)) & 15)
                                : static_cast<int>((ns << (4 - exponent)) & 15);
  const int bucket = std::min(exponent * kSubBuckets + sub, kBuckets - 1);
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
}

absl::Duration LatencyHistogram::quantile(double fraction) const {
  uint64_t total = 0;
  for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
  const auto rank =
      static_cast<uint64_t>(std::ceil(static_cast<double>(total) * std::clamp(fraction, 0.0, 1.0)));
  const uint64_t wanted = std::clamp<uint64_t>(rank, 1, std::max<uint64_t>(1, total));
  uint64_t seen = 0;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    seen += buckets_[bucket].load(std::memory_order_relaxed);
    if (seen < wanted) continue;
    const double base = static_cast<double>(uint64_t{1} << (bucket / kSubBuckets));
    return absl::Nanoseconds(base * (1.0 + (bucket % kSubBuckets + 0.5) / kSubBuckets));
  }
  return absl::ZeroDuration();
}

}  // namespace gradwire
