#include "gradwire/base/latency_histogram.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire {
namespace {

double nanoseconds(absl::Duration duration) { return absl::ToDoubleNanoseconds(duration); }

TEST(LatencyHistogram, EmptyIsZero) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.quantile(0.5), absl::ZeroDuration());
  EXPECT_EQ(histogram.mean(), absl::ZeroDuration());
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
  EXPECT_EQ(histogram.count(), 1000);
  EXPECT_NEAR(nanoseconds(histogram.quantile(0.5)), 500e3, 500e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(0.99)), 990e3, 990e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(0)), 1e3, 1e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.quantile(1)), 1000e3, 1000e3 / 16);
  EXPECT_NEAR(nanoseconds(histogram.mean()), 500.5e3, 1);
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
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_LT(histogram.quantile(0), absl::Nanoseconds(2));
  EXPECT_GT(histogram.quantile(1), absl::Hours(24));
}

TEST(LatencyHistogram, ResetForgets) {
  LatencyHistogram histogram;
  histogram.record(absl::Seconds(1));
  histogram.reset();
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.quantile(1), absl::ZeroDuration());
}

TEST(LatencyHistogram, ThreadsLoseNothing) {
  LatencyHistogram histogram;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&histogram] {
      for (int n = 0; n < 1000; ++n) histogram.record(absl::Microseconds(n));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.count(), 4000);
}

}  // namespace
}  // namespace gradwire
