#include <cstdint>
#include <string>

#include "gradwire/collectives/cpu/p2p/matcher.h"
#include "gradwire/collectives/cpu/p2p/matcher_fixture.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST_F(MatcherTest, MessagesThatArrivedFromALostRankCanBeReceived) {
  EXPECT_TRUE(eager(1, "a").empty());
  EXPECT_TRUE(rts(1, 5).empty());
  EXPECT_TRUE(eager(1, "c").empty());
  EXPECT_TRUE(lost(1).empty());
  EXPECT_TRUE(lost(1).empty());
  expect_delivered(post(1, 1), 1, 1, "a");
  // The announced message is not skipped, because then the last one would overtake it.
  expect_failed(post(2, 1), 2, absl::StatusCode::kUnavailable);
  expect_delivered(post(3, 1), 3, 1, "c");
  expect_failed(post(4, 1), 4, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, LostRankFailsWhatWaitsForIt) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, 2).empty());
  EXPECT_TRUE(post(3, kAnyRank).empty());
  expect_failed(lost(1), 1, absl::StatusCode::kUnavailable);
  expect_failed(lost(2), 2, absl::StatusCode::kUnavailable);
  // All other ranks are lost, so no message can arrive.
  expect_failed(lost(3), 3, absl::StatusCode::kUnavailable);
  expect_failed(post(4, kAnyRank), 4, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, LostRankFailsReceivesThatSentCts) {
  EXPECT_TRUE(post(1, kAnyRank).empty());
  expect_cts(rts(2, 5), 2, 5);
  expect_failed(lost(2), 1, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, AbortEndsOnlyItsChannel) {
  EXPECT_TRUE(post(1, 1, 1, /*tag=*/1).empty());
  EXPECT_TRUE(post(2, 1, 1, 1, /*channel=*/8).empty());
  EXPECT_TRUE(rts(2, 5).empty());
  EXPECT_TRUE(eager(2, "a").empty());
  const Matcher::Actions actions = abort();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Kind::kFail);
  EXPECT_EQ(actions[0].receive, 1u);
  EXPECT_EQ(actions[0].status.message(), "requested by the test");
  EXPECT_EQ(actions[1].kind, Kind::kNack);
  EXPECT_EQ(actions[1].status.code(), absl::StatusCode::kAborted);
  expect_failed(post(3, 1), 3, absl::StatusCode::kAborted);
  EXPECT_TRUE(eager(1, "b").empty());
  const Matcher::Actions refused = rts(1, 6);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].kind, Kind::kNack);
  EXPECT_TRUE(abort().empty());
  expect_delivered(eager(1, "c", 1, 8), 2, 1, "c");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, DataAfterCtsOfAnAbortedChannelIsDropped) {
  EXPECT_TRUE(post(1, 1).empty());
  expect_cts(rts(1, 5), 1, 5);
  expect_failed(abort(), 1, absl::StatusCode::kAborted);
  EXPECT_TRUE(data(1, 5, "a").empty());
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, ForgottenChannelDropsLateMessages) {
  EXPECT_TRUE(eager(1, "a").empty());
  EXPECT_TRUE(post(1, 1, 1, 0, 8).empty());
  Matcher::Actions actions;
  forget(kMatcherChannel, actions);
  forget(kMatcherChannel, actions);
  EXPECT_TRUE(actions.empty());
  forget(8, actions);
  expect_failed(actions, 1, absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::IsCancelled(channels_.state(8)));
  expect_failed(post(2, 1), 2, absl::StatusCode::kCancelled);
  const Matcher::Actions refused = rts(1, 5);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].kind, Kind::kNack);
  // The whole window is returned, several times.
  const std::string large(1 << 20, 'x');
  uint64_t returned = 0;
  for (int i = 0; i < 100; ++i) {
    for (const Matcher::Action& action : eager(1, large)) {
      EXPECT_EQ(action.kind, Kind::kCredit);
      returned += action.bytes;
    }
  }
  EXPECT_GT(returned, 4 * kEagerWindow);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, OnlySoManyForgottenChannelsAreKept) {
  Matcher::Actions actions;
  for (uint64_t channel = 0; channel <= Channels::kMostForgotten; ++channel) forget(channel, actions);
  EXPECT_TRUE(channels_.state(0).ok());
  EXPECT_FALSE(channels_.state(1).ok());
  EXPECT_FALSE(channels_.state(Channels::kMostForgotten).ok());
}

TEST_F(MatcherTest, ChannelNamesRanks) {
  channels_.name_ranks(kMatcherChannel, {{0, 0}, {2, 1}});
  EXPECT_EQ(channels_.name_of(kMatcherChannel, 2), "rank 1");
  EXPECT_EQ(channels_.name_of(kMatcherChannel, 1), "rank 1 of the world");
  EXPECT_EQ(channels_.name_of(8, 2), "rank 2");
  EXPECT_TRUE(matcher_.lost_status(kMatcherChannel, 2).ok());
  EXPECT_TRUE(post(1, 2).empty());
  EXPECT_TRUE(post(2, 2, 1, 0, 8).empty());
  const Matcher::Actions actions = lost(2);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].status.message(), "rank 1 is lost");
  EXPECT_EQ(actions[1].status.message(), "rank 2 is lost");
  Matcher::Actions none;
  forget(kMatcherChannel, none);
  EXPECT_EQ(channels_.name_of(kMatcherChannel, 2), "rank 2");
}

}  // namespace
}  // namespace gradwire::collectives::cpu
