#include "collectives/cpu/mesh/matcher.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

using Kind = Matcher::Action::Kind;

constexpr uint64_t kChannel = 7;

Payload payload(const std::string& text) {
  transport::Message message;
  message.header = encode_frame({.kind = FrameKind::kEager}) + text;
  return Payload(std::move(message));
}

std::string text_of(const Payload& payload) {
  return std::string(static_cast<const char*>(payload.data()), payload.size());
}

class MatcherTest : public testing::Test {
 protected:
  Matcher::Actions post(uint64_t receive, int src, uint64_t size = 1, int64_t tag = 0,
                        uint64_t channel = kChannel) {
    Matcher::Actions actions;
    matcher_.post(receive, src, channel, tag, size, actions);
    return actions;
  }
  Matcher::Actions eager(int src, const std::string& text, int64_t tag = 0, uint64_t channel = kChannel) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.eager(src, channel, tag, payload(text), actions).ok());
    return actions;
  }
  Matcher::Actions announce(int src, uint64_t message, uint64_t size = 1, int64_t tag = 0,
                            uint64_t channel = kChannel) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.announce(src, channel, tag, size, message, actions).ok());
    return actions;
  }
  Matcher::Actions data(int src, uint64_t message, const std::string& text) {
    Matcher::Actions actions;
    EXPECT_TRUE(matcher_.data(src, message, payload(text), actions).ok());
    return actions;
  }
  Matcher::Actions lost(int src) {
    Matcher::Actions actions;
    matcher_.lost(src, absl::UnavailableError("rank is gone"), actions);
    return actions;
  }
  Matcher::Actions abort(uint64_t channel = kChannel) {
    Matcher::Actions actions;
    matcher_.abort(channel, absl::AbortedError("enough"), actions);
    return actions;
  }

  static void expect_delivered(const Matcher::Actions& actions, uint64_t receive, int src,
                               const std::string& text) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kDeliver);
    EXPECT_EQ(actions[0].receive, receive);
    EXPECT_EQ(actions[0].src, src);
    EXPECT_EQ(text_of(actions[0].payload), text);
  }
  static void expect_failed(const Matcher::Actions& actions, uint64_t receive, absl::StatusCode code) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kFail);
    EXPECT_EQ(actions[0].receive, receive);
    EXPECT_EQ(actions[0].status.code(), code) << actions[0].status;
  }
  static void expect_asked(const Matcher::Actions& actions, int src, uint64_t message) {
    ASSERT_EQ(actions.size(), 1u);
    EXPECT_EQ(actions[0].kind, Kind::kAsk);
    EXPECT_EQ(actions[0].src, src);
    EXPECT_EQ(actions[0].message, message);
  }

  Matcher matcher_{0, 4};
};

TEST_F(MatcherTest, ReceivesTakeMessagesInTheOrderInWhichTheyCame) {
  EXPECT_TRUE(eager(1, "a").empty());
  EXPECT_TRUE(announce(1, 5).empty());
  EXPECT_TRUE(eager(1, "c").empty());
  expect_delivered(post(1, 1), 1, 1, "a");
  expect_asked(post(2, 1), 1, 5);
  expect_delivered(post(3, 1), 3, 1, "c");
  expect_delivered(data(1, 5, "b"), 2, 1, "b");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, MessagesGoToReceivesInTheOrderInWhichTheyWerePosted) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, Matcher::kAny).empty());
  EXPECT_TRUE(post(3, 1).empty());
  expect_delivered(eager(1, "a"), 1, 1, "a");
  expect_asked(announce(1, 9), 1, 9);
  expect_delivered(eager(1, "c"), 3, 1, "c");
  expect_delivered(data(1, 9, "b"), 2, 1, "b");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, ChannelsTagsAndSourcesAreApart) {
  EXPECT_TRUE(post(1, 1, 1, /*tag=*/3).empty());
  EXPECT_TRUE(eager(1, "a", /*tag=*/4).empty());
  EXPECT_TRUE(eager(2, "b", /*tag=*/3).empty());
  EXPECT_TRUE(eager(1, "c", /*tag=*/3, /*channel=*/8).empty());
  expect_delivered(eager(1, "d", /*tag=*/3), 1, 1, "d");
  expect_delivered(post(2, 1, 1, 3, 8), 2, 1, "c");
}

TEST_F(MatcherTest, AnySourceTakesTheFirstThatCame) {
  EXPECT_TRUE(eager(3, "a").empty());
  EXPECT_TRUE(eager(1, "b").empty());
  EXPECT_TRUE(eager(3, "c").empty());
  expect_delivered(post(1, Matcher::kAny), 1, 3, "a");
  expect_delivered(post(2, Matcher::kAny), 2, 1, "b");
  expect_delivered(post(3, 3), 3, 3, "c");
}

TEST_F(MatcherTest, AnotherSizeFailsBothAndTheNextMessageIsTaken) {
  EXPECT_TRUE(post(1, 1, 2).empty());
  expect_failed(eager(1, "abc"), 1, absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(announce(1, 5, 3).empty());
  const Matcher::Actions actions = post(2, 1, 2);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Kind::kRefuse);
  EXPECT_EQ(actions[0].message, 5u);
  EXPECT_EQ(actions[0].bytes, 2u);
  EXPECT_EQ(actions[1].kind, Kind::kFail);
  EXPECT_EQ(actions[1].status.message(),
            "a message of 3 bytes came from rank 1 (tag 0) for a receive of 2 bytes");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, CancelledReceiveTakesNothing) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, 1).empty());
  matcher_.cancel(1);
  expect_delivered(eager(1, "a"), 2, 1, "a");
  EXPECT_TRUE(post(3, Matcher::kAny).empty());
  matcher_.cancel(3);
  matcher_.cancel(3);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, DataForACancelledReceiveIsDropped) {
  EXPECT_TRUE(post(1, 1).empty());
  expect_asked(announce(1, 5), 1, 5);
  matcher_.cancel(1);
  EXPECT_TRUE(data(1, 5, "a").empty());
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, WithdrawnMessageIsGone) {
  EXPECT_TRUE(announce(1, 5).empty());
  Matcher::Actions actions;
  matcher_.withdraw(1, 5, absl::StatusCode::kDeadlineExceeded, actions);
  matcher_.withdraw(1, 6, absl::StatusCode::kDeadlineExceeded, actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_TRUE(post(1, 1).empty());
  expect_asked(announce(1, 7), 1, 7);
  matcher_.withdraw(1, 7, absl::StatusCode::kDeadlineExceeded, actions);
  expect_failed(actions, 1, absl::StatusCode::kAborted);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, WhatHadComeFromALostRankCanBeReceived) {
  EXPECT_TRUE(eager(1, "a").empty());
  EXPECT_TRUE(announce(1, 5).empty());
  EXPECT_TRUE(eager(1, "c").empty());
  EXPECT_TRUE(lost(1).empty());
  EXPECT_TRUE(lost(1).empty());
  expect_delivered(post(1, 1), 1, 1, "a");
  // It is not skipped: that would let the last one overtake.
  expect_failed(post(2, 1), 2, absl::StatusCode::kUnavailable);
  expect_delivered(post(3, 1), 3, 1, "c");
  expect_failed(post(4, 1), 4, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, LostRankFailsWhatWaitsForIt) {
  EXPECT_TRUE(post(1, 1).empty());
  EXPECT_TRUE(post(2, 2).empty());
  EXPECT_TRUE(post(3, Matcher::kAny).empty());
  expect_failed(lost(1), 1, absl::StatusCode::kUnavailable);
  expect_failed(lost(2), 2, absl::StatusCode::kUnavailable);
  // Nobody is left of whom it could come.
  expect_failed(lost(3), 3, absl::StatusCode::kUnavailable);
  expect_failed(post(4, Matcher::kAny), 4, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, LostRankFailsWhatWasAskedOfIt) {
  EXPECT_TRUE(post(1, Matcher::kAny).empty());
  expect_asked(announce(2, 5), 2, 5);
  expect_failed(lost(2), 1, absl::StatusCode::kUnavailable);
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, AbortEndsTheChannelAndNoOther) {
  EXPECT_TRUE(post(1, 1, 1, /*tag=*/1).empty());
  EXPECT_TRUE(post(2, 1, 1, 1, /*channel=*/8).empty());
  EXPECT_TRUE(announce(2, 5).empty());
  EXPECT_TRUE(eager(2, "a").empty());
  const Matcher::Actions actions = abort();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(actions[0].kind, Kind::kFail);
  EXPECT_EQ(actions[0].receive, 1u);
  EXPECT_EQ(actions[0].status.message(), "enough");
  EXPECT_EQ(actions[1].kind, Kind::kRefuse);
  EXPECT_EQ(actions[1].status.code(), absl::StatusCode::kAborted);
  expect_failed(post(3, 1), 3, absl::StatusCode::kAborted);
  EXPECT_TRUE(eager(1, "b").empty());
  const Matcher::Actions refused = announce(1, 6);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].kind, Kind::kRefuse);
  EXPECT_TRUE(abort().empty());
  expect_delivered(eager(1, "c", 1, 8), 2, 1, "c");
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, DataAskedForBeforeAnAbortIsDropped) {
  EXPECT_TRUE(post(1, 1).empty());
  expect_asked(announce(1, 5), 1, 5);
  expect_failed(abort(), 1, absl::StatusCode::kAborted);
  EXPECT_TRUE(data(1, 5, "a").empty());
  EXPECT_EQ(matcher_.size(), 0u);
}

TEST_F(MatcherTest, ForgottenChannelIsNew) {
  EXPECT_TRUE(eager(1, "a").empty());
  (void)abort();
  EXPECT_TRUE(post(1, 1, 1, 0, 8).empty());
  Matcher::Actions actions;
  matcher_.forget(kChannel, actions);
  EXPECT_TRUE(actions.empty());
  matcher_.forget(8, actions);
  expect_failed(actions, 1, absl::StatusCode::kCancelled);
  EXPECT_TRUE(post(2, 1).empty());
  expect_delivered(eager(1, "b"), 2, 1, "b");
}

TEST_F(MatcherTest, WhatWaitsIsBounded) {
  const std::string large(1 << 20, 'x');
  Matcher::Actions actions;
  absl::Status status;
  int taken = 0;
  while ((status = matcher_.eager(1, kChannel, 0, payload(large), actions)).ok()) ++taken;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(taken, 15);
  // Others have a window of their own.
  EXPECT_TRUE(eager(2, large).empty());
  // What is taken is returned now and then, and then there is room again.
  uint64_t returned = 0;
  for (uint64_t receive = 1; receive <= 15; ++receive) {
    for (const Matcher::Action& action : post(receive, 1, large.size())) {
      if (action.kind == Kind::kCredit) returned += action.bytes;
    }
  }
  EXPECT_GE(returned, kEagerWindow / 2);
  EXPECT_TRUE(eager(1, large).empty());
}

TEST_F(MatcherTest, AnnouncementsAreBounded) {
  Matcher::Actions actions;
  uint64_t message = 0;
  while (matcher_.announce(1, kChannel, 0, 8, ++message, actions).ok()) {
  }
  EXPECT_EQ(message, kMaxAnnounced + 1);
  EXPECT_TRUE(actions.empty());
}

TEST_F(MatcherTest, WhatAPeerMustNotSayIsRefused) {
  Matcher::Actions actions;
  EXPECT_TRUE(announce(1, 5).empty());
  EXPECT_FALSE(matcher_.announce(1, kChannel, 0, 1, 5, actions).ok());
  EXPECT_FALSE(matcher_.data(1, 5, payload("a"), actions).ok());
  EXPECT_FALSE(matcher_.data(1, 6, payload("a"), actions).ok());
  expect_asked(post(1, 1), 1, 5);
  EXPECT_FALSE(matcher_.data(1, 5, payload("ab"), actions).ok());
  EXPECT_FALSE(matcher_.data(2, 5, payload("a"), actions).ok());
  expect_delivered(data(1, 5, "a"), 1, 1, "a");
  EXPECT_TRUE(actions.empty());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
