#include "gradwire/tools/bench/run/measure.h"

#include "gtest/gtest.h"

namespace gradwire::bench {
namespace {

TEST(Computation, UsesAtLeastTheProcessorTimeThatWasAskedFor) {
  Computation computation;
  const int64_t before = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  const int64_t used = computation.run(2000);
  const int64_t after = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  EXPECT_GE(used, 2'000'000);
  EXPECT_LE(used, after - before);
  EXPECT_EQ(computation.run(0), 0);
}

TEST(Measure, ComputingBetweenCallsIsOwnTime) {
  int64_t order = 0;
  const auto nothing = [](int64_t) {};
  const Measurement result = measure(
      {.seconds = 0.01, .compute_us = 500}, nothing, [&](int64_t i) { order += i == order ? 1 : 1000; },
      nothing);
  EXPECT_EQ(order, result.calls);
  EXPECT_GE(result.own_cpu_us, 500.0 * static_cast<double>(result.calls));
  // The time of the call itself does not contain it.
  EXPECT_LT(percentile(result.micros, 0.5), 500);
}

TEST(Measure, WithoutLargeDataOrComputingNothingIsOwnTime) {
  const auto nothing = [](int64_t) {};
  EXPECT_EQ(measure({.seconds = 0.001}, nothing, nothing, nothing).own_cpu_us, 0);
  EXPECT_GT(measure({.seconds = 0.001, .large = true}, nothing, nothing, nothing).own_cpu_us, 0);
}

}  // namespace
}  // namespace gradwire::bench
