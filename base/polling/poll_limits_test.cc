#include "gradwire/base/polling/poll_limits.h"

#include <gtest/gtest.h>

namespace gradwire {
namespace {

constexpr int64_t kMsInNs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMsInNs;

TEST(PollBudget, BeginsWithTheShareOfOneSecond) {
  PollBudget budget(0.1);
  EXPECT_EQ(budget.left(kSecond), 100 * kMsInNs);
  EXPECT_EQ(budget.left(kSecond), 100 * kMsInNs);
}

TEST(PollBudget, GainsTheShareOfTheTimeThatPasses) {
  PollBudget budget(0.1);
  int64_t now = kSecond;
  (void)budget.left(now);
  budget.spend(130 * kMsInNs);
  EXPECT_EQ(budget.left(now), -30 * kMsInNs);
  EXPECT_EQ(budget.left(now += 200 * kMsInNs), -10 * kMsInNs);
  EXPECT_EQ(budget.left(now += 200 * kMsInNs), 10 * kMsInNs);
}

TEST(PollBudget, SavesNoMoreThanOneSecondGives) {
  PollBudget budget(0.25);
  (void)budget.left(kSecond);
  budget.spend(10 * kMsInNs);
  EXPECT_EQ(budget.left(1'000 * kSecond), 250 * kMsInNs);
}

TEST(PollBudget, TimeThatGoesBackGivesNothing) {
  PollBudget budget(0.1);
  (void)budget.left(2 * kSecond);
  budget.spend(100 * kMsInNs);
  EXPECT_EQ(budget.left(kSecond), 0);
}

TEST(PollBudget, EarnsTheTimeOfWorkUpToTheSavedTime) {
  PollBudget budget(0.1);
  (void)budget.left(kSecond);
  budget.spend(100 * kMsInNs);
  budget.earn(3 * kMsInNs);
  EXPECT_EQ(budget.left(kSecond), 3 * kMsInNs);
  budget.earn(kSecond);
  EXPECT_EQ(budget.left(kSecond), 100 * kMsInNs);
}

TEST(PollBudget, ShareOfZeroIsAlwaysEmpty) {
  PollBudget budget(0);
  budget.earn(kMsInNs);
  EXPECT_EQ(budget.left(kSecond), 0);
  EXPECT_EQ(budget.left(2 * kSecond), 0);
}

TEST(CoreContention, ShortYieldsAreNoContention) {
  CoreContention contention;
  for (int64_t now = kSecond; now < 2 * kSecond; now += kMsInNs / 2) {
    contention.yielded(kMsInNs / 2, now);
    ASSERT_FALSE(contention.is_high(now));
  }
}

TEST(CoreContention, LongYieldIsContentionForAWhile) {
  CoreContention contention;
  contention.yielded(3 * kMsInNs, kSecond);
  EXPECT_TRUE(contention.is_high(kSecond));
  EXPECT_TRUE(contention.is_high(kSecond + 7 * kMsInNs));
  EXPECT_FALSE(contention.is_high(kSecond + 8 * kMsInNs));
}

TEST(CoreContention, DemandThatStaysLastsTwiceAsLongEachTimeUpToALimit) {
  CoreContention contention;
  int64_t now = kSecond;
  for (int64_t length = 8 * kMsInNs; length <= 256 * kMsInNs; length *= 2) {
    contention.yielded(3 * kMsInNs, now);
    ASSERT_TRUE(contention.is_high(now + length - 1));
    now += length;
    ASSERT_FALSE(contention.is_high(now));
  }
  contention.yielded(3 * kMsInNs, now);
  EXPECT_FALSE(contention.is_high(now + 256 * kMsInNs));
  // After a long time without contention it begins anew.
  now += 2 * kSecond;
  contention.yielded(3 * kMsInNs, now);
  EXPECT_FALSE(contention.is_high(now + 8 * kMsInNs));
}

TEST(CoreContention, CoreThatWasReturnedEndsTheDoubling) {
  CoreContention contention;
  int64_t now = kSecond;
  contention.yielded(3 * kMsInNs, now);
  contention.yielded(3 * kMsInNs, now += 9 * kMsInNs);
  EXPECT_TRUE(contention.is_high(now + 15 * kMsInNs));
  contention.returned();
  contention.yielded(3 * kMsInNs, now += 17 * kMsInNs);
  EXPECT_FALSE(contention.is_high(now + 8 * kMsInNs));
}

}  // namespace
}  // namespace gradwire
