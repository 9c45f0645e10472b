#include "gradwire/tools/inspect/clock/clock_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace gradwire::inspect {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kStart = 1'700'000'000 * kSecond;

// The callee's clock is a linear function of the caller's.
struct Clocks {
  int64_t offset = 0;
  double drift = 0;

  int64_t callee(int64_t caller) const {
    return caller + offset + std::llround(drift * static_cast<double>(caller - kStart));
  }
  // A call at the caller's time `sent`, with these times on the way and in the callee.
  ClockSample call(int64_t sent, int64_t there, int64_t served, int64_t back) const {
    return {sent, callee(sent + there), callee(sent + there + served), sent + there + served + back};
  }
};

std::vector<ClockSample> random_calls(const Clocks& clocks, int count, int64_t period, uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> delay(1 / 50'000.0);
  std::vector<ClockSample> samples;
  for (int i = 0; i < count; ++i) {
    samples.push_back(clocks.call(kStart + period * i / count, 10'000 + static_cast<int64_t>(delay(random)),
                                  30'000, 10'000 + static_cast<int64_t>(delay(random))));
  }
  return samples;
}

TEST(ClockFit, NoSampleHasNoFit) { EXPECT_FALSE(fit_clocks({})); }

TEST(ClockFit, OneSampleIsBoundByItsTimeOnTheWay) {
  const Clocks clocks{.offset = -7 * kSecond};
  const auto fit = fit_clocks({clocks.call(kStart, 30'000, 5'000, 10'000)});
  ASSERT_TRUE(fit);
  EXPECT_LE(std::abs(fit->map(kStart) - clocks.callee(kStart)), fit->error());
  EXPECT_GE(fit->error(), 20'000);
  EXPECT_LE(fit->error(), 21'000);
}

TEST(ClockFit, FindsOffsetAndDriftOfManyCalls) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Clocks clocks{.offset = 3 * kSecond + 12'345, .drift = seed % 2 == 0 ? 40e-6 : -120e-6};
    const auto fit = fit_clocks(random_calls(clocks, 2000, 60 * kSecond, seed));
    ASSERT_TRUE(fit) << seed;
    EXPECT_NEAR(fit->drift(), clocks.drift, 1e-7) << seed;
    EXPECT_LT(fit->error(), 15'000) << seed;
    for (int64_t time = 0; time <= 60 * kSecond; time += kSecond) {
      EXPECT_LE(std::abs(fit->map(kStart + time) - clocks.callee(kStart + time)), fit->error() + 2) << seed;
    }
  }
}

TEST(ClockFit, VeryManyCallsGiveTheSameFit) {
  const Clocks clocks{.offset = -2 * kSecond, .drift = 80e-6};
  const auto fit = fit_clocks(random_calls(clocks, 20'000, 60 * kSecond, 1));
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->drift(), clocks.drift, 1e-7);
  for (int64_t time = 0; time <= 60 * kSecond; time += kSecond)
    EXPECT_LE(std::abs(fit->map(kStart + time) - clocks.callee(kStart + time)), fit->error() + 2);
}

// The callee's view of the calls of the caller maps its clock to that of the caller.
TEST(ClockFit, TurnedSamplesMapInTheOtherDirection) {
  const Clocks clocks{.offset = 5 * kSecond, .drift = -60e-6};
  std::vector<ClockSample> turned;
  for (const ClockSample& sample : random_calls(clocks, 500, 60 * kSecond, 3))
    turned.push_back(sample.turned());
  const auto fit = fit_clocks(turned);
  ASSERT_TRUE(fit);
  for (int64_t time = 0; time <= 60 * kSecond; time += kSecond) {
    const int64_t callee = clocks.callee(kStart + time);
    EXPECT_LE(std::abs(fit->map(callee) - (kStart + time)), fit->error() + 2);
    EXPECT_EQ(fit->map(callee) - callee, fit->lead(callee));
  }
}

TEST(ClockFit, TrueTimeIsWithinTheErrorOfFewAndSlowCalls) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Clocks clocks{.offset = -kSecond, .drift = (static_cast<double>(seed) - 100) * 2e-6};
    const auto fit = fit_clocks(random_calls(clocks, 3, kSecond / 10, seed));
    ASSERT_TRUE(fit) << seed;
    for (int64_t time : {int64_t{0}, kSecond / 20, kSecond / 15}) {
      EXPECT_LE(std::abs(fit->map(kStart + time) - clocks.callee(kStart + time)), fit->error() + 2) << seed;
    }
  }
}

TEST(ClockFit, ClockThatWasSetHasNoFit) {
  const Clocks before{.offset = 0};
  const Clocks after{.offset = kSecond};
  EXPECT_FALSE(
      fit_clocks({before.call(kStart, 10'000, 0, 10'000), after.call(kStart + kSecond, 10'000, 0, 10'000),
                  before.call(kStart + 2 * kSecond, 10'000, 0, 10'000)}));
}

TEST(ClockFit, AnswerBeforeItsCallHasNoFit) {
  EXPECT_FALSE(fit_clocks({{.sent = 1000, .arrived = 500, .answered = 900, .received = 1100}}));
}

TEST(ClockFit, AnyNumbersAreAllowed) {
  const int64_t values[] = {std::numeric_limits<int64_t>::min(), -1, 0, 1,
                            std::numeric_limits<int64_t>::max()};
  for (const int64_t sent : values) {
    for (const int64_t arrived : values) {
      for (const int64_t answered : values) {
        for (const int64_t received : values) {
          const auto fit = fit_clocks({{sent, arrived, answered, received}, {0, 0, 0, 0}});
          if (fit) {
            EXPECT_GE(fit->error(), 0);
          }
        }
      }
    }
  }
}

TEST(ClockFit, InverseUndoesTheMap) {
  const auto fit = fit_clocks(random_calls({.offset = 5 * kSecond, .drift = 90e-6}, 100, 10 * kSecond, 1));
  ASSERT_TRUE(fit);
  for (int64_t time = kStart; time < kStart + 10 * kSecond; time += kSecond) {
    EXPECT_NEAR(static_cast<double>(fit->inverse().map(fit->map(time)) - time), 0, 5);
  }
  EXPECT_EQ(fit->inverse().error(), fit->error());
}

TEST(ClockFit, MapsFollowEachOther) {
  const Clocks ab{.offset = 2 * kSecond, .drift = 30e-6};
  const auto first = fit_clocks(random_calls(ab, 500, 10 * kSecond, 2));
  const auto second =
      fit_clocks(random_calls({.offset = -9 * kSecond, .drift = -50e-6}, 500, 10 * kSecond, 3));
  ASSERT_TRUE(first && second);
  const ClockFit both = first->then(*second);
  EXPECT_EQ(both.error(), first->error() + second->error());
  for (int64_t time = kStart; time < kStart + 10 * kSecond; time += kSecond) {
    EXPECT_NEAR(static_cast<double>(both.map(time) - second->map(first->map(time))), 0, 5);
  }
}

TEST(ClockFit, DefaultMapsAClockToItself) {
  EXPECT_EQ(ClockFit().map(kStart), kStart);
  EXPECT_EQ(ClockFit().error(), 0);
}

}  // namespace
}  // namespace gradwire::inspect
