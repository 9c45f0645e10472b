#include "gradwire/rpc/caller/answer_by.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gradwire::rpc
