#include <string>

#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/p2p/endpoint_fixture.h"
#include "gtest/gtest.h"

// Lost ranks, closed endpoints, protocol violations, and messages that arrive in pieces.
namespace gradwire::collectives::cpu {
namespace {

TEST_F(EndpointTest, RanksThatDoNotExistAreRefused) {
  EXPECT_TRUE(at(0).check(2).ok());
  EXPECT_EQ(at(0).check(3), absl::InvalidArgumentError("invalid rank 3: expected 0 to 2 in a world of 3"));
  EXPECT_EQ(at(0).check(-1), absl::InvalidArgumentError("invalid rank -1: expected 0 to 2 in a world of 3"));
  EXPECT_EQ(end_of(receive(0, 3, 1)), "INVALID_ARGUMENT: invalid rank 3: expected 0 to 2 in a world of 3");
  const Endpoint group({.size = 2, .whole = "group"});
  EXPECT_EQ(group.check(2), absl::InvalidArgumentError("invalid rank 2: expected 0 to 1 in a group of 2"));
}

TEST_F(EndpointTest, FailedSendsLeaveReceivesAlone) {
  const SendPtr announced = send(0, 1, "large"), queued = send(0, 1, "1234"), other = send(0, 2, "1234");
  carry(0, 1);
  const ReceivePtr receive = this->receive(0, 1, 3);
  act(0, [&](Effects& effects) { at(0).fail_sends(1, absl::UnavailableError("does not answer"), effects); });
  EXPECT_EQ(end_of(announced), "UNAVAILABLE: rank 1 does not answer");
  EXPECT_EQ(end_of(queued), "UNAVAILABLE: rank 1 does not answer");
  EXPECT_EQ(end_of(other), "");
  EXPECT_EQ(end_of(receive), "");
  EXPECT_FALSE(at(0).matcher().is_lost(1));
  send(1, 0, "yes");
  run();
  EXPECT_EQ(end_of(receive), "OK from 1: yes");
  EXPECT_EQ(end_of(this->receive(2, 0, 4)), "OK from 0: 1234");
}

TEST_F(EndpointTest, LostRankFailsWhatWaitsForIt) {
  send(1, 0, "abc", /*tag=*/1);
  const SendPtr promised = send(1, 0, "large", /*tag=*/1);
  run();
  const SendPtr announced = send(0, 1, "large"), queued = send(0, 1, "1234");
  carry(0, 1);
  const SendPtr sending = send(0, 1, "5678");
  EXPECT_EQ(take(0, 1).send, queued);
  const ReceivePtr waiting = receive(0, 1, 3), any = receive(0, kAnyRank, 2), other = receive(0, 2, 2);
  lose(0, 1);
  lose(0, 1);
  EXPECT_TRUE(at(0).matcher().is_lost(1));
  EXPECT_FALSE(at(0).matcher().is_lost(2));
  EXPECT_EQ(end_of(announced), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(sending), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(waiting), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(other), "");
  EXPECT_EQ(end_of(any), "");
  EXPECT_EQ(end_of(queued), "");
  EXPECT_EQ(ranks_[0]->retracted, std::vector<SendPtr>{queued});
  released(0, queued);
  EXPECT_EQ(end_of(queued), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(send(0, 1, "x")), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(receive(0, 1, 3)), "UNAVAILABLE: rank 1 has left");
  EXPECT_FALSE(at(0).check_open(1, kChannel).ok());
  EXPECT_FALSE(sends(0).outboxes().has(1));
  // This message arrived before rank 1 was lost.
  EXPECT_EQ(end_of(receive(0, 1, 3, /*tag=*/1)), "OK from 1: abc");
  EXPECT_EQ(end_of(receive(0, kAnyRank, 5, /*tag=*/1)), "UNAVAILABLE: rank 1 has left");
  // All other ranks are lost: no rank can send to rank 0 any more.
  lose(0, 2);
  EXPECT_EQ(end_of(any), "UNAVAILABLE: rank 2 has left");
  EXPECT_EQ(end_of(other), "UNAVAILABLE: rank 2 has left");
  EXPECT_EQ(end_of(receive(0, kAnyRank, 2)), "UNAVAILABLE: rank 1 has left");
  // The other end.
  EXPECT_EQ(end_of(promised), "");
  lose(1, 0);
  EXPECT_EQ(end_of(promised), "UNAVAILABLE: rank 0 has left");
  EXPECT_EQ(end_of(receive(1, 0, 5)), "UNAVAILABLE: rank 0 has left");
}

TEST_F(EndpointTest, FramesOfALostRankAreIgnored) {
  const SendPtr announced = send(0, 1, "large"), eager = send(0, 1, "1234");
  const SendTable::Outgoing first = take(0, 1), second = take(0, 1);
  const ReceivePtr any = receive(1, kAnyRank, 5);
  lose(1, 0);
  EXPECT_TRUE(arrive(0, 1, first.frame).ok());
  EXPECT_TRUE(arrive(0, 1, second.frame, "1234").ok());
  act(1, [&](Effects& effects) { EXPECT_TRUE(at(1).on_bypassed(0, 4, effects).ok()); });
  EXPECT_TRUE(answers(1).empty());
  EXPECT_EQ(at(1).matcher().size(), 1u);
  EXPECT_EQ(end_of(any), "");
  sent(0, eager);
  lose(0, 1);
  released(0, announced);
  cancel(1, any);
}

TEST_F(EndpointTest, LossInEachStageOfAReceive) {
  const SendPtr gone = send(1, 0, "large"), cts_received = send(1, 0, "large");
  run();
  const ReceivePtr cancelled = receive(0, 1, 5), asked = receive(0, kAnyRank, 5);
  EXPECT_EQ(answer(0).id, gone->id);
  EXPECT_EQ(answer(0).id, cts_received->id);
  cancel(0, cancelled);
  lose(0, 1);
  EXPECT_EQ(end_of(asked), "UNAVAILABLE: rank 1 has left");
  EXPECT_EQ(end_of(cancelled), "CANCELLED: requested by the test");
  lose(1, 0);
  EXPECT_EQ(end_of(gone), "UNAVAILABLE: rank 0 has left");
  EXPECT_EQ(end_of(cts_received), "UNAVAILABLE: rank 0 has left");
}

TEST_F(EndpointTest, CloseEndsEverything) {
  const SendPtr announced = send(0, 1, "large"), own = send(0, 0, "large");
  const ReceivePtr waiting = receive(0, 1, 3);
  carry(0, 1);
  const SendPtr sending = send(0, 2, "1234");
  take(0, 2);
  const absl::Status left = absl::CancelledError("this rank has left");
  act(0, [&](Effects& effects) { at(0).close(left, effects); });
  act(0, [&](Effects& effects) { at(0).close(absl::AbortedError("again"), effects); });
  for (const SendPtr& each : {announced, own}) EXPECT_EQ(end_of(each), "CANCELLED: this rank has left");
  EXPECT_EQ(end_of(waiting), "CANCELLED: this rank has left");
  EXPECT_EQ(end_of(sending), "");
  EXPECT_FALSE(at(0).idle());
  released(0, sending);
  EXPECT_EQ(end_of(sending), "CANCELLED: this rank has left");
  EXPECT_TRUE(at(0).idle());
  EXPECT_EQ(at(0).check_open(1, kChannel), left);
  EXPECT_EQ(end_of(send(0, 1, "x")), "CANCELLED: this rank has left");
  EXPECT_EQ(end_of(receive(0, 1, 1)), "CANCELLED: this rank has left");
  EXPECT_FALSE(sends(0).outboxes().has(1));
  lose(1, 0);
  EXPECT_EQ(end_of(receive(1, 0, 5)), "UNAVAILABLE: rank 0 has left");
}

TEST_F(EndpointTest, FramesThatBreakTheProtocolAreRefused) {
  const auto refused = [&](const Frame& frame, const std::string& text = "") {
    const absl::Status status = arrive(1, 0, frame, text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refused({.kind = FrameKind::kCredit, .size = 1}),
            "credit of 1 bytes, expected at most 0 that were sent");
  EXPECT_EQ(refused({.kind = FrameKind::kRts, .channel = kChannel, .size = 5}), "RTS with id 0");
  EXPECT_EQ(refused({.kind = FrameKind::kCancel, .id = 1}), "kCancel without an error code");
  EXPECT_EQ(refused({.kind = FrameKind::kCancel, .code = 17, .id = 1}), "kCancel without an error code");
  EXPECT_EQ(refused({.kind = FrameKind::kNack, .id = 1}), "kNack without an error code");
  EXPECT_EQ(refused({.kind = FrameKind::kNack, .code = 17, .id = 1}), "kNack without an error code");
  for (const FrameKind kind : {FrameKind::kHello, FrameKind::kWelcome, FrameKind::kGoodbye,
                               static_cast<FrameKind>(0), static_cast<FrameKind>(12)}) {
    EXPECT_EQ(refused({.kind = kind, .id = 1}),
              absl::StrCat("unexpected frame of kind ", static_cast<int>(kind)));
  }
  EXPECT_EQ(refused({.kind = FrameKind::kData, .id = 1}, "large"),
            "unexpected data of message 1: no CTS was sent for it");
  const Frame rts{.kind = FrameKind::kRts, .channel = kChannel, .size = 5, .id = 1};
  EXPECT_TRUE(arrive(1, 0, rts).ok());
  EXPECT_EQ(refused(rts), "duplicate RTS for message 1");
  EXPECT_EQ(refused({.kind = FrameKind::kData, .id = 1}, "large"),
            "unexpected data of message 1: no CTS was sent for it");
  // Another rank may use the same id.
  EXPECT_TRUE(arrive(2, 0, rts).ok());
  const ReceivePtr receive = this->receive(0, 1, 5);
  EXPECT_EQ(answers(0).size(), 1u);
  answers(0).clear();
  EXPECT_EQ(refused({.kind = FrameKind::kData, .id = 1}, "larger"),
            "data of message 1 has 6 bytes, expected 5");
  EXPECT_FALSE(arrive(2, 0, {.kind = FrameKind::kData, .id = 1}, "large").ok());
  EXPECT_EQ(end_of(receive), "");
  EXPECT_TRUE(arrive(1, 0, {.kind = FrameKind::kData, .id = 1}, "large").ok());
  EXPECT_EQ(end_of(receive), "OK from 1: large");
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kCancel, .code = 1, .id = 1}).ok());
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kCancel, .code = 1, .id = 1}).ok());
}

TEST_F(EndpointTest, MoreThanTheWindowIsRefused) {
  const Frame eager{.kind = FrameKind::kEager, .channel = kChannel};
  EXPECT_FALSE(arrive(1, 0, eager, std::string(kTestWindow, 'x')).ok());
  EXPECT_TRUE(arrive(1, 0, eager, "1234").ok());
  EXPECT_TRUE(arrive(1, 0, eager, "5678").ok());
  EXPECT_EQ(arrive(1, 0, eager, ""),
            absl::InvalidArgumentError("eager messages exceed the window of 139 bytes"));
  EXPECT_EQ(end_of(receive(0, 1, 4)), "OK from 1: 1234");
  EXPECT_EQ(end_of(receive(0, 1, 4)), "OK from 1: 5678");
  answers(0).clear();
}

// The carrier delivers a message in pieces, with kBegin.
TEST_F(EndpointTest, MessageThatComesInPiecesGoesIntoItsReceive) {
  const Frame begin{.kind = FrameKind::kBegin, .channel = kChannel, .tag = 2, .size = 4, .id = 9};
  const ReceivePtr receive = this->receive(0, 1, 4, /*tag=*/2);
  EXPECT_TRUE(at(0).matcher().has_receive_for(1, kChannel, 2));
  EXPECT_FALSE(at(0).matcher().has_receive_for(2, kChannel, 2));
  EXPECT_FALSE(at(0).matcher().has_receive_for(1, kChannel, 3));
  act(0, [&](Effects& effects) { EXPECT_TRUE(at(0).on_frame(1, begin, {}, effects).ok()); });
  ASSERT_EQ(answers(0).size(), 1u);
  EXPECT_EQ(answers(0)[0].second.kind, FrameKind::kCts);
  answers(0).clear();
  EXPECT_TRUE(arrive(1, 0, {.kind = FrameKind::kData, .id = 9}, "abcd").ok());
  EXPECT_EQ(end_of(receive), "OK from 1: abcd");
  act(0, [&](Effects& effects) { EXPECT_TRUE(at(0).on_bypassed(1, 4, effects).ok()); });
  ASSERT_EQ(answers(0).size(), 1u);
  EXPECT_EQ(answers(0)[0].second.kind, FrameKind::kCredit);
  EXPECT_EQ(answers(0)[0].second.size, 4 + kMessageCost);
  answers(0).clear();
  act(0, [&](Effects& effects) { EXPECT_FALSE(at(0).on_bypassed(1, kTestWindow, effects).ok()); });
  act(0, [&](Effects& effects) {
    EXPECT_FALSE(at(0).on_frame(1, {.kind = FrameKind::kBegin, .channel = kChannel}, {}, effects).ok());
  });
}

TEST_F(EndpointTest, MessageThatComesInPiecesWaitsForItsReceive) {
  const Frame begin{.kind = FrameKind::kBegin, .channel = kChannel, .size = 4, .id = 9};
  act(0, [&](Effects& effects) { EXPECT_TRUE(at(0).on_frame(1, begin, {}, effects).ok()); });
  const auto deliver_buffered = [&](const std::string& text) {
    absl::Status status;
    act(0, [&](Effects& effects) {
      status = at(0).on_buffered(1, 9, Payload::copy_of(text.data(), text.size()), effects);
    });
    return status;
  };
  EXPECT_EQ(deliver_buffered("abc"), absl::InvalidArgumentError("message 9 does not match its RTS"));
  EXPECT_TRUE(deliver_buffered("abcd").ok());
  EXPECT_EQ(end_of(receive(0, kAnyRank, 4)), "OK from 1: abcd");
  EXPECT_EQ(answers(0).size(), 1u);
  // The channel has ended meanwhile: the message only returns credit.
  EXPECT_TRUE(deliver_buffered("abcd").ok());
  EXPECT_EQ(answers(0).size(), 2u);
  answers(0).clear();
}

}  // namespace
}  // namespace gradwire::collectives::cpu
