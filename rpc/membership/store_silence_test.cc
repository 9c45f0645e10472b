#include "gradwire/rpc/membership/store_silence.h"

#include <gtest/gtest.h>

namespace gradwire::rpc {
namespace {

using SilenceState = StoreSilence::State;

TEST(StoreSilence, StoreThatAnswersIsNeverLost) {
  StoreSilence silence(absl::Seconds(20));
  for (int call = 0; call < 100; ++call) {
    silence.unanswered(absl::Seconds(7));
    silence.unanswered(absl::Seconds(7));
    EXPECT_EQ(silence.state(), SilenceState::kSilent);
    silence.answered();
    EXPECT_EQ(silence.state(), SilenceState::kAnswering);
  }
}

TEST(StoreSilence, SilentStoreIsLostAfterItsTime) {
  StoreSilence silence(absl::Seconds(20));
  silence.unanswered(absl::Seconds(7));
  for (int call = 0; call < 12; ++call) {
    silence.unanswered(absl::Seconds(1));
    EXPECT_FALSE(silence.lost()) << silence.duration();
  }
  silence.unanswered(absl::Seconds(1));
  EXPECT_TRUE(silence.lost());
  EXPECT_EQ(silence.duration(), absl::Seconds(20));
}

TEST(StoreSilence, LostStoreThatAnswersIsBackWithItsFullTime) {
  StoreSilence silence(absl::Seconds(10));
  silence.unanswered(absl::Seconds(8));
  silence.unanswered(absl::Seconds(8));
  ASSERT_TRUE(silence.lost());
  silence.answered();
  EXPECT_EQ(silence.state(), SilenceState::kAnswering);
  silence.unanswered(absl::Seconds(4));
  silence.unanswered(absl::Seconds(4));
  EXPECT_FALSE(silence.lost());
}

TEST(StoreSilence, PauseOfTheProcessThatAsksDoesNotLoseTheStore) {
  StoreSilence silence(absl::Seconds(20));
  // One call lasted for the whole pause. The next one has no answer either, because of the load after the
  // pause.
  silence.unanswered(absl::Hours(1));
  EXPECT_FALSE(silence.lost());
  silence.unanswered(absl::Seconds(2));
  EXPECT_FALSE(silence.lost());
  silence.answered();
  EXPECT_EQ(silence.duration(), absl::ZeroDuration());
}

TEST(StoreSilence, OneCallAloneDoesNotLoseTheStore) {
  StoreSilence silence(absl::Seconds(3));
  silence.unanswered(absl::Seconds(7));
  EXPECT_FALSE(silence.lost());
  silence.unanswered(absl::Seconds(1));
  EXPECT_TRUE(silence.lost());
}

TEST(StoreSilence, UnreachableStoreIsLostAtOnce) {
  StoreSilence silence(absl::Seconds(20));
  silence.unreachable();
  EXPECT_TRUE(silence.lost());
  silence.unanswered(absl::Seconds(1));
  EXPECT_TRUE(silence.lost());
  silence.answered();
  EXPECT_FALSE(silence.lost());
}

}  // namespace
}  // namespace gradwire::rpc
