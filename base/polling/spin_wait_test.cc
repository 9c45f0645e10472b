#include "gradwire/base/polling/spin_wait.h"

#include <gtest/gtest.h>

#include "gradwire/base/clock.h"

namespace gradwire {
namespace {

TEST(SpinWait, PolicyOfZeroSleepsAtOnce) {
  SpinWait wait({absl::ZeroDuration(), absl::ZeroDuration()});
  EXPECT_FALSE(wait.rest());
  EXPECT_TRUE(wait.renew());
  EXPECT_FALSE(wait.rest());
}

TEST(SpinWait, DeadlineThatHasPassedSleepsAtOnce) {
  SpinWait wait({-absl::Microseconds(1), -absl::Microseconds(1)});
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(wait.rest()) << i;
}

TEST(SpinWait, RestsUntilThePolicyIsOverAndAgainAfterRenew) {
  const absl::Duration whole = absl::Milliseconds(2);
  SpinWait wait({whole / 2, whole / 2});
  for (int round = 0; round < 2; ++round) {
    const absl::Time begun = Clock::system().now();
    EXPECT_TRUE(wait.rest());
    while (wait.rest()) {
    }
    EXPECT_GE(Clock::system().now() - begun, whole);
    EXPECT_FALSE(wait.rest());
    wait.renew();
  }
}

TEST(SpinWait, IsOverUntilRenewAlsoIfItNeverYielded) {
  SpinWait wait({absl::Nanoseconds(1), absl::ZeroDuration()});
  while (wait.rest()) {
  }
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(wait.rest()) << i;
  wait.renew();
  EXPECT_TRUE(wait.rest());
}

TEST(SpinWait, InfinitePauseNeverSleeps) {
  SpinWait wait({absl::InfiniteDuration(), absl::InfiniteDuration()});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(wait.rest()) << i;
}

TEST(Spin, StopsAtTheFirstSuccessOrAfterTheGivenPolls) {
  int polled = 0;
  EXPECT_TRUE(spin(10, [&] { return ++polled == 3; }));
  EXPECT_EQ(polled, 3);
  polled = 0;
  EXPECT_FALSE(spin(10, [&] { return ++polled > 10; }));
  EXPECT_EQ(polled, 10);
}

}  // namespace
}  // namespace gradwire
