#include "gradwire/base/polling/poll_limits.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMilli;

TEST(PollBudget, BeginsWithTheShareOfOneSecond) {
  PollBudget budget(0.1);
  EXPECT_EQ(budget.left(kSecond), 100 * kMilli);
  EXPECT_EQ(budget.left(kSecond), 100 * kMilli);
}

TEST(PollBudget, GainsTheShareOfTheTimeThatPasses) {
  PollBudget budget(0.1);
  int64_t now = kSecond;
  (void)budget.left(now);
  budget.spend(130 * kMilli);
  EXPECT_EQ(budget.left(now), -30 * kMilli);
  EXPECT_EQ(budget.left(now += 200 * kMilli), -10 * kMilli);
  EXPECT_EQ(budget.left(now += 200 * kMilli), 10 * kMilli);
}

TEST(PollBudget, SavesNoMoreThanOneSecondGives) {
  PollBudget budget(0.25);
  (void)budget.left(kSecond);
  budget.spend(10 * kMilli);
  EXPECT_EQ(budget.left(1'000 * kSecond), 250 * kMilli);
}

TEST(PollBudget, TimeThatGoesBackGivesNothing) {
  PollBudget budget(0.1);
  (void)budget.left(2 * kSecond);
  budget.spend(100 * kMilli);
  EXPECT_EQ(budget.left(kSecond), 0);
}

TEST(PollBudget, EarnsTheTimeOfWorkUpToTheSavedTime) {
  PollBudget budget(0.1);
  (void)budget.left(kSecond);
  budget.spend(100 * kMilli);
  budget.earn(3 * kMilli);
  EXPECT_EQ(budget.left(kSecond), 3 * kMilli);
  budget.earn(kSecond);
  EXPECT_EQ(budget.left(kSecond), 100 * kMilli);
}

TEST(PollBudget, ShareOfZeroIsAlwaysEmpty) {
  PollBudget budget(0);
  budget.earn(kMilli);
  EXPECT_EQ(budget.left(kSecond), 0);
  EXPECT_EQ(budget.left(2 * kSecond), 0);
}

TEST(CoreDemand, ShortYieldsAreNoDemand) {
  CoreDemand demand;
  for (int64_t now = kSecond; now < 2 * kSecond; now += 500 * kMicro) {
    demand.yielded(500 * kMicro, now);
    ASSERT_FALSE(demand.is_high(now));
  }
}

TEST(CoreDemand, LongYieldIsDemandForAWhile) {
  CoreDemand demand;
  demand.yielded(3 * kMilli, kSecond);
  EXPECT_TRUE(demand.is_high(kSecond));
  EXPECT_TRUE(demand.is_high(kSecond + 7 * kMilli));
  EXPECT_FALSE(demand.is_high(kSecond + 8 * kMilli));
}

TEST(CoreDemand, DemandThatStaysLastsTwiceAsLongEachTimeUpToALimit) {
  CoreDemand demand;
  int64_t now = kSecond;
  for (int64_t length = 8 * kMilli; length <= 256 * kMilli; length *= 2) {
    demand.yielded(3 * kMilli, now);
    ASSERT_TRUE(demand.is_high(now + length - 1));
    now += length;
    ASSERT_FALSE(demand.is_high(now));
  }
  demand.yielded(3 * kMilli, now);
  EXPECT_FALSE(demand.is_high(now + 256 * kMilli));
  // After a long time without demand it begins anew.
  now += 2 * kSecond;
  demand.yielded(3 * kMilli, now);
  EXPECT_FALSE(demand.is_high(now + 8 * kMilli));
}

TEST(CoreDemand, CoreThatWasReturnedEndsTheDoubling) {
  CoreDemand demand;
  int64_t now = kSecond;
  demand.yielded(3 * kMilli, now);
  demand.yielded(3 * kMilli, now += 9 * kMilli);
  EXPECT_TRUE(demand.is_high(now + 15 * kMilli));
  demand.returned();
  demand.yielded(3 * kMilli, now += 17 * kMilli);
  EXPECT_FALSE(demand.is_high(now + 8 * kMilli));
}

}  // namespace
}  // namespace gradwire
