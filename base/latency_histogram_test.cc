#include "gradwire/base/latency_histogram.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire {
namespace {

double nanoseconds(absl::Duration duration) { return absl::ToDoubleNanoseconds(duration); }

TEST(LatencyHistogram, EmptyIsZero) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.quantile(0.5), absl::ZeroDuration());
}

TEST(LatencyHistogram, OneValueIsFoundWithinABucketAtEveryScale) {
  for (double ns = 1; ns < 1e13; ns *= 1.37) {
    LatencyHistogram histogram;
    histogram.record(absl::Nanoseconds(ns));
    const double recorded = nanoseconds(absl::Floor(absl::Nanoseconds(ns), absl::Nanoseconds(1)));
    EXPECT_NEAR(nanoseconds(histogram.quantile(0.5)), recorded, recorded / 16) << ns;
  }
}

TEST(LatencyHistogram, QuantilesOfAKnownDistribution) {
  LatencyHistogram histogram;
  for (int us = 1; us <= 1000; ++us) histogram.record(absl::Microseconds(us));
  EXPECT_NEAR(nanoseconds(histogram.quantile(0.5)), 500e3, 500e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(0.99)), 990e3, 990e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(0)), 1e3, 1e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(1)), 1000e3, 1000e3 / 16);
}

TEST(LatencyHistogram, MedianOfTwoIsTheLower) {
  LatencyHistogram histogram;
  histogram.record(absl::Microseconds(1));
  histogram.record(absl::Seconds(1));
  EXPECT_LT(histogram.quantile(0.5), absl::Milliseconds(1));
}

TEST(LatencyHistogram, ValuesOutOfRangeAreKept) {
  LatencyHistogram histogram;
  histogram.record(-absl::Seconds(1));
  histogram.record(absl::Hours(1000000));
  EXPECT_LT(histogram.quantile(0), absl::Nanoseconds(2));
  EXPECT_GT(histogram.quantile(1), absl::Hours(24));
}

TEST(LatencyHistogram, ThreadsLoseNothing) {
  LatencyHistogram histogram;
  const std::vector<double> of_thread = {1e3, 1e4, 1e5, 1e6};
  std::vector<std::thread> threads;
  for (const double ns : of_thread) {
    threads.emplace_back([&histogram, ns] {
      for (int n = 0; n < 1000; ++n) histogram.record(absl::Nanoseconds(ns));
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A duration that was lost would move the quarters' bounds.
  for (int i = 0; i < 4; ++i) {
    const double ns = of_thread[static_cast<std::size_t>(i)];
    EXPECT_NEAR(nanoseconds(histogram.quantile((1000 * i + 1) / 4000.0)), ns, ns / 16);
    EXPECT_NEAR(nanoseconds(histogram.quantile((i + 1) / 4.0)), ns, ns / 16);
  }
}

}  // namespace
}  // namespace gradwire
