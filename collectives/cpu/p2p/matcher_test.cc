#include "gradwire/collectives/cpu/p2p/matcher.h"

#include <cstdint>
#include <string>

#include "gradwire/collectives/cpu/p2p/matcher_fixture.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST_F(MatcherTest, ReceivesTakeMessagesInOrderOfArrival) {
  EXPECT_TRUE(eager(1, "a").empty());
  EXPECT_TRUE(rts(1, 5).empty());
  EXPECT_TRUE(eager(1, "c").empty());
  expect_delivered(post(1, 1), 1, 1, "a");
  expect_cts(post(2, 1), 1, 5);
  expect_delivered(post(3, 1), 3, 1, "c");
  expect_delivered(data(1, 5, "b"), 2, 1, "b");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, MessagesGoToReceivesInOrderOfPosting) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, kAnyRank).empty());
  EXPECT_TRUE(post(3, 1).empty());
  expect_delivered(eager(1, "a"), 1, 1, "a");
  expect_cts(rts(1, 9), 1, 9);
  expect_delivered(eager(1, "c"), 3, 1, "c");
  expect_delivered(data(1, 9, "b"), 2, 1, "b");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, BufferedMessageKeepsItsPosition) {
  EXPECT_TRUE(rts(1, 5).empty());
  EXPECT_TRUE(eager(1, "c").empty());
  Matcher::Actions actions;
  EXPECT_TRUE(matcher_.on_buffered(1, 5, payload("b"), actions).ok());
  EXPECT_TRUE(actions.empty());
  // A message that is not known is charged to the window, and this one exceeds it.
  EXPECT_FALSE(matcher_.on_buffered(1, 6, payload(std::string(kEagerWindow, 'x')), actions).ok());
  // The message can be received, although its sender is lost.
  EXPECT_TRUE(lost(1).empty());
  expect_delivered(post(1, 1), 1, 1, "b");
  expect_delivered(post(2, kAnyRank), 2, 1, "c");
  EXPECT_TRUE(post(3, 2).empty());
  expect_cts(rts(2, 7), 2, 7);
  EXPECT_FALSE(matcher_.on_buffered(2, 7, payload("d"), actions).ok());
}

TEST_F(MatcherTest, BypassedMessagesReturnCredit) {
  uint64_t returned = 0;
  uint64_t passed = 0;
  for (int i = 0; i < 40; ++i) {
    Matcher::Actions actions;
    ASSERT_TRUE(matcher_.on_bypassed(1, 1 << 20, actions).ok());
    passed += (1 << 20) + kMessageCost;
    for (const Matcher::Action& action : actions) {
      EXPECT_EQ(action.kind, Kind::kCredit);
      EXPECT_EQ(action.src, 1);
      returned += action.bytes;
    }
  }
  EXPECT_LE(passed - returned, kEagerWindow / 4);
  Matcher::Actions actions;
  EXPECT_FALSE(matcher_.on_bypassed(1, kEagerWindow, actions).ok());
}

TEST_F(MatcherTest, HasReceiveForPostedReceives) {
  EXPECT_FALSE(matcher_.has_receive_for(1, kMatcherChannel, 0));
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(matcher_.has_receive_for(1, kMatcherChannel, 0));
  EXPECT_FALSE(matcher_.has_receive_for(2, kMatcherChannel, 0));
  EXPECT_FALSE(matcher_.has_receive_for(1, kMatcherChannel, 1));
  EXPECT_FALSE(matcher_.has_receive_for(1, kMatcherChannel + 1, 0));
  EXPECT_TRUE(post(2, kAnyRank, 1, /*tag=*/1).empty());
  EXPECT_TRUE(matcher_.has_receive_for(2, kMatcherChannel, 1));
  matcher_.cancel(1);
  EXPECT_FALSE(matcher_.has_receive_for(1, kMatcherChannel, 0));
}

TEST_F(MatcherTest, ChannelsTagsAndSourcesAreApart) {
  EXPECT_TRUE(post(1, 1, 1, /*tag=*/3).empty());
  EXPECT_TRUE(eager(1, "a", /*tag=*/4).empty());
  EXPECT_TRUE(eager(2, "b", /*tag=*/3).empty());
  EXPECT_TRUE(eager(1, "c", /*tag=*/3, /*channel=*/8).empty());
  expect_delivered(eager(1, "d", /*tag=*/3), 1, 1, "d");
  expect_delivered(post(2, 1, 1, 3, 8), 2, 1, "c");
}

TEST_F(MatcherTest, AnySourceTakesTheOldestMessage) {
  EXPECT_TRUE(eager(3, "a").empty());
  EXPECT_TRUE(eager(1, "b").empty());
  EXPECT_TRUE(eager(3, "c").empty());
  expect_delivered(post(1, kAnyRank), 1, 3, "a");
  expect_delivered(post(2, kAnyRank), 2, 1, "b");
  expect_delivered(post(3, 3), 3, 3, "c");
}

TEST_F(MatcherTest, AnotherSizeFailsBothAndTheNextMessageIsTaken) {
  EXPECT_TRUE(post(1, 1, 2).empty());
  expect_failed(eager(1, "abc"), 1, absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(rts(1, 5, 3).empty());
  const Matcher::Actions actions = post(2, 1, 2);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Kind::kNack);
  EXPECT_EQ(actions[0].message, 5u);
  EXPECT_EQ(actions[0].bytes, 2u);
  EXPECT_EQ(actions[1].kind, Kind::kFail);
  EXPECT_EQ(actions[1].status.message(),
            "message size mismatch: got 3 bytes from rank 1 (tag 0), expected 2");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, CancelledReceiveTakesNothing) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, 1).empty());
  matcher_.cancel(1);
  expect_delivered(eager(1, "a"), 2, 1, "a");
  EXPECT_TRUE(post(3, kAnyRank).empty());
  matcher_.cancel(3);
  matcher_.cancel(3);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, DataForACancelledReceiveIsDropped) {
  EXPECT_TRUE(post(1, 1).empty());
  expect_cts(rts(1, 5), 1, 5);
  matcher_.cancel(1);
  EXPECT_TRUE(data(1, 5, "a").empty());
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, CancelledMessageIsRemoved) {
  EXPECT_TRUE(rts(1, 5).empty());
  Matcher::Actions actions;
  matcher_.on_cancel(1, 5, absl::StatusCode::kDeadlineExceeded, actions);
  matcher_.on_cancel(1, 6, absl::StatusCode::kDeadlineExceeded, actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_TRUE(post(1, 1).empty());
  expect_cts(rts(1, 7), 1, 7);
  matcher_.on_cancel(1, 7, absl::StatusCode::kDeadlineExceeded, actions);
  expect_failed(actions, 1, absl::StatusCode::kAborted);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, WaitingMessagesAreBounded) {
  const std::string large(1 << 20, 'x');
  Matcher::Actions actions;
  absl::Status status;
  int taken = 0;
  while ((status = matcher_.on_eager(1, kMatcherChannel, 0, payload(large), actions)).ok()) ++taken;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(taken, 15);
  // Each source has its own window.
  EXPECT_TRUE(eager(2, large).empty());
  // Credit is returned in batches, and then the window has room again.
  uint64_t returned = 0;
  for (uint64_t receive = 1; receive <= 15; ++receive) {
    for (const Matcher::Action& action : post(receive, 1, large.size())) {
      if (action.kind == Kind::kCredit) returned += action.bytes;
    }
  }
  EXPECT_GE(returned, kEagerWindow / 2);
  EXPECT_TRUE(eager(1, large).empty());
}

TEST_F(MatcherTest, PendingRtsAreBounded) {
  Matcher::Actions actions;
  uint64_t message = 0;
  while (matcher_.on_rts(1, kMatcherChannel, 0, 8, ++message, actions).ok()) {
  }
  EXPECT_EQ(message, kMaxPendingRts + 1);
  EXPECT_TRUE(actions.empty());
}

TEST_F(MatcherTest, UnreturnedCreditStaysCharged) {
  const std::string large(1 << 20, 'x');
  for (uint64_t receive = 1; receive <= 3; ++receive) {
    EXPECT_TRUE(post(receive, 1, large.size()).empty());
    // Too little credit to be returned.
    expect_delivered(eager(1, large), receive, 1, large);
  }
  Matcher::Actions actions;
  int taken = 0;
  while (matcher_.on_eager(1, kMatcherChannel, 0, payload(large), actions).ok()) ++taken;
  EXPECT_EQ(taken, 12);
}

// A message does not count as pending any more, regardless of how it ends.
TEST_F(MatcherTest, EndedMessagesAreNotPending) {
  Matcher::Actions actions;
  uint64_t message = 0;
  for (std::size_t i = 0; i < kMaxPendingRts; ++i) {
    ASSERT_TRUE(matcher_.on_rts(1, kMatcherChannel, 0, 1, ++message, actions).ok());
    matcher_.on_cancel(1, message, absl::StatusCode::kCancelled, actions);
  }
  for (std::size_t i = 0; i < kMaxPendingRts; ++i) {
    ASSERT_TRUE(matcher_.on_rts(1, kMatcherChannel, 0, 1, ++message, actions).ok());
    ASSERT_TRUE(matcher_.on_buffered(1, message, payload("x"), actions).ok());
    matcher_.post(message, 1, kMatcherChannel, 0, 1, actions);
  }
  for (std::size_t i = 0; i < kMaxPendingRts; ++i) {
    ASSERT_TRUE(matcher_.on_rts(1, kMatcherChannel, 0, 1, ++message, actions).ok());
    matcher_.post(message, 1, kMatcherChannel, 0, 1, actions);
    ASSERT_TRUE(matcher_.on_data(1, message, payload("x"), actions).ok());
  }
  EXPECT_TRUE(matcher_.on_rts(1, kMatcherChannel, 0, 1, ++message, actions).ok());
  EXPECT_EQ(matcher_.size(), 2u);
}

TEST_F(MatcherTest, ProtocolViolationsAreRefused) {
  Matcher::Actions actions;
  EXPECT_TRUE(rts(1, 5).empty());
  EXPECT_FALSE(matcher_.on_rts(1, kMatcherChannel, 0, 1, 5, actions).ok());
  EXPECT_FALSE(matcher_.on_data(1, 5, payload("a"), actions).ok());
  EXPECT_FALSE(matcher_.on_data(1, 6, payload("a"), actions).ok());
  expect_cts(post(1, 1), 1, 5);
  EXPECT_FALSE(matcher_.on_data(1, 5, payload("ab"), actions).ok());
  EXPECT_FALSE(matcher_.on_data(2, 5, payload("a"), actions).ok());
  expect_delivered(data(1, 5, "a"), 1, 1, "a");
  EXPECT_TRUE(actions.empty());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
