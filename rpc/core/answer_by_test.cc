#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/rpc/core/deadline.h"

namespace gradwire::rpc {
namespace {

TEST(AnswerBy, LeavesATwentiethOfTheTimeAtLeastFiftyMillisecondsAndAtMostHalf) {
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  const auto waits = [&](absl::Duration timeout) { return answer_by(now, now + timeout) - now; };
  EXPECT_EQ(waits(absl::Seconds(60)), absl::Seconds(57));
  EXPECT_EQ(waits(absl::Seconds(1)), absl::Milliseconds(950));
  EXPECT_EQ(waits(absl::Milliseconds(200)), absl::Milliseconds(150));
  EXPECT_EQ(waits(absl::Milliseconds(20)), absl::Milliseconds(10));
  EXPECT_EQ(waits(absl::ZeroDuration()), absl::ZeroDuration());
}

TEST(AnswerBy, InfiniteDeadlineStaysInfinite) {
  EXPECT_EQ(answer_by(absl::UnixEpoch(), absl::InfiniteFuture()), absl::InfiniteFuture());
}

TEST(AnswerBy, DeadlineThatHasPassedIsNotMoved) {
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  EXPECT_EQ(answer_by(now, now - absl::Seconds(3)), now - absl::Seconds(3));
}

template <class T>
concept ComparesWithNow = requires(const T& deadline) {
  deadline - absl::Now();
};
static_assert(ComparesWithNow<absl::Time>);
static_assert(!ComparesWithNow<Deadline>, "a deadline is a time of another clock than absl::Now()");

TEST(Deadline, LeftIsMeasuredNowAndNeverNegative) {
  const absl::Time now = Clock::system().now();
  const absl::Duration left = Deadline(now + absl::Minutes(10)).left();
  EXPECT_GT(left, absl::ZeroDuration());
  EXPECT_LE(left, absl::Minutes(10));
  EXPECT_EQ(Deadline(now - absl::Seconds(1)).left(), absl::ZeroDuration());
  EXPECT_EQ(Deadline(absl::InfiniteFuture()).left(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace gradwire::rpc
