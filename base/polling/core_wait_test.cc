#include "gradwire/base/polling/core_wait.h"

#include <gtest/gtest.h>

#include "gradwire/base/manual_clock.h"

namespace gradwire {
namespace {

using CoreRest = CoreWait::Rest;

constexpr absl::Duration kStep = absl::Microseconds(100);

bool wanted() { return true; }
bool unwanted() { return false; }

// Returns the number of shared waits until one has to sleep at once; 0 if none has.
int waits_until_sleep(CoreSharing& sharing) {
  for (int waits = 1; waits < 10'000; ++waits) {
    if (sharing.should_sleep(true)) return waits;
  }
  return 0;
}

TEST(CoreSharing, SleepsAfterTwiceAsManySharedWaitsEachTime) {
  CoreSharing sharing(2, 2);
  EXPECT_EQ(waits_until_sleep(sharing), 64);
  EXPECT_EQ(waits_until_sleep(sharing), 128);
  EXPECT_EQ(waits_until_sleep(sharing), 256);
}

TEST(CoreSharing, WaitOnACoreOfItsOwnBeginsTheCountAnew) {
  CoreSharing sharing(2, 2);
  for (int i = 0; i < 63; ++i) EXPECT_FALSE(sharing.should_sleep(true));
  EXPECT_FALSE(sharing.should_sleep(false));
  EXPECT_EQ(waits_until_sleep(sharing), 64);
}

TEST(CoreSharing, MoreProcessesThanCoresNeverSleepForIt) {
  CoreSharing sharing(3, 2);
  EXPECT_EQ(waits_until_sleep(sharing), 0);
}

class CoreWaitTest : public ::testing::Test {
 protected:
  // Returns the number of rests until `wait` has to sleep. Each rest takes kStep.
  int rests_until_sleep(CoreWait& wait) {
    for (int rests = 1; rests < 1000; ++rests) {
      if (wait.rest(unwanted) == CoreRest::kSleep) return rests;
      clock_.advance(kStep);
    }
    return 0;
  }

  CoreSharing sharing_{2, 2};
  ManualClock clock_;
};

TEST_F(CoreWaitTest, SpinsWhileNobodyWantsTheCore) {
  CoreWait wait(sharing_, absl::InfiniteFuture(), clock_);
  EXPECT_EQ(wait.rest(unwanted), CoreRest::kSpin);
  EXPECT_EQ(wait.rest(wanted), CoreRest::kYield);
  EXPECT_EQ(wait.rest(unwanted), CoreRest::kSpin);
}

TEST_F(CoreWaitTest, LongWaitYieldsWithoutAskingForTheCore) {
  CoreWait wait(sharing_, absl::InfiniteFuture(), clock_);
  int asked = 0;
  for (int i = 0; i < 100; ++i) {
    const CoreRest rest = wait.rest([&] {
      ++asked;
      return false;
    });
    EXPECT_EQ(rest, i < 8 ? CoreRest::kSpin : CoreRest::kYield) << i;
  }
  EXPECT_EQ(asked, 8);
}

TEST_F(CoreWaitTest, SleepsAfterAMillisecondOfYieldsAndYieldsAgainAfterASleep) {
  CoreWait wait(sharing_, absl::InfiniteFuture(), clock_);
  const absl::Time begun = clock_.now();
  const int first = rests_until_sleep(wait);
  EXPECT_GE(clock_.now() - begun, absl::Milliseconds(1));
  EXPECT_LT(clock_.now() - begun, absl::Milliseconds(10));
  const int second = rests_until_sleep(wait);
  EXPECT_GT(second, 1);
  EXPECT_LT(second, first);
}

TEST_F(CoreWaitTest, RenewRestartsTheWait) {
  CoreWait wait(sharing_, absl::InfiniteFuture(), clock_);
  const int first = rests_until_sleep(wait);
  wait.renew();
  EXPECT_EQ(rests_until_sleep(wait), first);
  wait.renew();
  EXPECT_EQ(wait.rest(unwanted), CoreRest::kSpin);
}

TEST_F(CoreWaitTest, DeadlineEndsTheYields) {
  CoreWait unlimited(sharing_, absl::InfiniteFuture(), clock_);
  CoreWait late(sharing_, clock_.now(), clock_);
  EXPECT_LT(rests_until_sleep(late), rests_until_sleep(unlimited));
}

TEST_F(CoreWaitTest, SharedWaitsInARowEndInASleep) {
  int waits = 0;
  CoreRest rest;
  do {
    CoreWait wait(sharing_, absl::InfiniteFuture(), clock_);
    rest = wait.rest(wanted);
    EXPECT_NE(wait.rest(wanted), CoreRest::kSleep);
    ASSERT_LE(++waits, 64);
  } while (rest == CoreRest::kYield);
  EXPECT_EQ(rest, CoreRest::kSleep);
  EXPECT_EQ(waits, 64);
}

}  // namespace
}  // namespace gradwire
