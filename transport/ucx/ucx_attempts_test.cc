#include "gradwire/transport/ucx/ucx_attempts.h"

#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(UcxAttempts, AddressesShareTheTime) {
  UcxAttempts attempts(3, kStart + absl::Seconds(30));
  UcxAttempts::Attempt attempt = attempts.begin(kStart);
  EXPECT_EQ(attempt.address, 0u);
  EXPECT_EQ(attempt.deadline, kStart + absl::Seconds(10));
  const absl::Time second = kStart + absl::Seconds(2);
  EXPECT_EQ(attempts.fail(false, second), second);
  attempt = attempts.begin(second);
  EXPECT_EQ(attempt.address, 1u);
  EXPECT_EQ(attempt.deadline, second + absl::Seconds(14));
  EXPECT_EQ(attempts.fail(false, second), second);
  attempt = attempts.begin(second);
  EXPECT_EQ(attempt.address, 2u);
  EXPECT_EQ(attempt.deadline, kStart + absl::Seconds(30));
}

TEST(UcxAttempts, EndAfterTheLastAddress) {
  UcxAttempts attempts(2, kStart + absl::Seconds(30));
  attempts.begin(kStart);
  ASSERT_TRUE(attempts.fail(false, kStart).has_value());
  attempts.begin(kStart);
  EXPECT_EQ(attempts.fail(false, kStart), std::nullopt);
}

TEST(UcxAttempts, BeginAgainAfterAPauseIfAnyAddressTurnedThemAway) {
  UcxAttempts attempts(2, kStart + absl::Seconds(30));
  absl::Time now = kStart;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(attempts.begin(now).address, 0u);
    ASSERT_TRUE(attempts.fail(true, now).has_value());
    EXPECT_EQ(attempts.begin(now).address, 1u);
    const auto again = attempts.fail(false, now);
    ASSERT_EQ(again, now + absl::Milliseconds(20 << round));
    now = *again;
  }
  // This time no address turned them away.
  attempts.begin(now);
  ASSERT_TRUE(attempts.fail(false, now).has_value());
  attempts.begin(now);
  EXPECT_EQ(attempts.fail(false, now), std::nullopt);
}

TEST(UcxAttempts, EndWithTheTime) {
  UcxAttempts attempts(1, kStart + absl::Seconds(5));
  absl::Time now = kStart;
  absl::Duration longest;
  for (int round = 0; round < 20; ++round) {
    attempts.begin(now);
    const auto again = attempts.fail(true, now);
    if (!again.has_value()) break;
    longest = *again - now;
    now = *again;
  }
  EXPECT_EQ(longest, absl::Seconds(1));
  EXPECT_LT(now, kStart + absl::Seconds(5));
  EXPECT_GT(now, kStart + absl::Seconds(3));
}

}  // namespace
}  // namespace gradwire::transport
