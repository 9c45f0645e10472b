#include "gradwire/collectives/cpu/p2p/endpoint.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/cpu/p2p/endpoint_fixture.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

TEST_F(EndpointTest, ShortMessageGoesAtOnce) {
  const SendPtr send = this->send(0, 1, "abc", /*tag=*/5);
  EXPECT_EQ(carry(0, 1), FrameKind::kEager);
  EXPECT_EQ(end_of(send), "OK");
  EXPECT_EQ(at(1).matcher().size(), 1u);
  EXPECT_TRUE(at(1).idle());
  const ReceivePtr receive = this->receive(1, 0, 3, /*tag=*/5);
  EXPECT_EQ(end_of(receive), "OK from 0: abc");
  EXPECT_FALSE(at(1).contains(*receive));
}

TEST_F(EndpointTest, LongMessageWaitsForItsReceive) {
  const SendPtr send = this->send(0, 1, "large");
  EXPECT_EQ(carry(0, 1), FrameKind::kRts);
  EXPECT_EQ(end_of(send), "");
  EXPECT_FALSE(at(0).idle());
  const ReceivePtr receive = this->receive(1, kAnyRank, 5);
  EXPECT_EQ(answer(1).kind, FrameKind::kCts);
  EXPECT_TRUE(at(1).contains(*receive));
  EXPECT_EQ(carry(0, 1), FrameKind::kData);
  EXPECT_EQ(end_of(send), "OK");
  EXPECT_EQ(end_of(receive), "OK from 0: large");
}

TEST_F(EndpointTest, MessagesMeetReceivesInOrder) {
  const ReceivePtr first = receive(1, 0, 5), second = receive(1, 0, 5), third = receive(1, 0, 1);
  send(0, 1, "one..");
  send(0, 1, "two..");
  send(0, 1, "3");
  run();
  EXPECT_EQ(end_of(first), "OK from 0: one..");
  EXPECT_EQ(end_of(second), "OK from 0: two..");
  EXPECT_EQ(end_of(third), "OK from 0: 3");
}

TEST_F(EndpointTest, EmptyMessagesAreMessages) {
  send(0, 1, "");
  run();
  EXPECT_EQ(end_of(receive(1, 0, 0)), "OK from 0: ");
}

TEST_F(EndpointTest, CreditComesWhenAQuarterOfTheWindowWasTaken) {
  for (int i = 0; i < 8; ++i) {
    const SendPtr send = this->send(0, 1, "1234");
    EXPECT_TRUE(send->eager) << i;
    EXPECT_EQ(carry(0, 1), FrameKind::kEager);
    EXPECT_EQ(end_of(receive(1, 0, 4)), "OK from 0: 1234");
    const Frame credit = answer(1);
    EXPECT_EQ(credit.kind, FrameKind::kCredit);
    EXPECT_EQ(credit.size, 4 + kMessageCost);
  }
}

TEST_F(EndpointTest, ShortMessagesWithoutCreditUseRendezvous) {
  std::vector<SendPtr> sends;
  for (int i = 0; i < 4; ++i) sends.push_back(send(0, 1, "1234"));
  EXPECT_FALSE(sends[2]->eager);
  const SendPtr refused = send(0, 1, "1234");
  EXPECT_EQ(end_of(refused),
            "RESOURCE_EXHAUSTED: too many pending messages: rank 1 has not received 2 messages of this rank");
  run();
  EXPECT_EQ(end_of(sends[1]), "OK");
  EXPECT_EQ(end_of(sends[2]), "");
  for (int i = 0; i < 4; ++i) {
    const ReceivePtr receive = this->receive(1, 0, 4);
    run();
    EXPECT_EQ(end_of(receive), "OK from 0: 1234");
    EXPECT_EQ(end_of(sends[i]), "OK");
  }
  EXPECT_TRUE(send(0, 1, "1234")->eager);
  receive(1, 0, 4);
  run();
}

TEST_F(EndpointTest, AnotherSizeFailsBothSides) {
  const SendPtr send = this->send(0, 1, "large", /*tag=*/3);
  const ReceivePtr receive = this->receive(1, 0, 7, /*tag=*/3);
  run();
  EXPECT_EQ(end_of(send), "INVALID_ARGUMENT: message size mismatch: rank 1 got 5 bytes (tag 3), expected 7");
  EXPECT_EQ(end_of(receive),
            "INVALID_ARGUMENT: message size mismatch: got 5 bytes from rank 0 (tag 3), expected 7");
  // The send of an eager message has already succeeded.
  const SendPtr eager = this->send(0, 1, "abc");
  const ReceivePtr other = this->receive(1, 0, 2);
  run();
  EXPECT_EQ(end_of(eager), "OK");
  EXPECT_EQ(end_of(other),
            "INVALID_ARGUMENT: message size mismatch: got 3 bytes from rank 0 (tag 0), expected 2");
}

TEST_F(EndpointTest, CancelCrossesTheAnswer) {
  const SendPtr send = this->send(0, 1, "large", /*tag=*/3);
  carry(0, 1);
  const ReceivePtr receive = this->receive(1, 0, 5, /*tag=*/3);
  cancel(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: requested by the test");
  // The kCts is ignored, and the kCancel ends the receive.
  EXPECT_EQ(answer(1).kind, FrameKind::kCts);
  EXPECT_EQ(carry(0, 1), FrameKind::kCancel);
  EXPECT_EQ(end_of(receive), "ABORTED: rank 0 cancelled its message before the data was sent: CANCELLED");

  const SendPtr refused = this->send(0, 1, "large");
  carry(0, 1);
  EXPECT_EQ(end_of(this->receive(1, 0, 7)).substr(0, 16), "INVALID_ARGUMENT");
  cancel(0, refused);
  EXPECT_EQ(answer(1).kind, FrameKind::kNack);
  EXPECT_EQ(carry(0, 1), FrameKind::kCancel);
  EXPECT_EQ(end_of(refused), "CANCELLED: requested by the test");
}

TEST_F(EndpointTest, CancelledMessageIsNotReceived) {
  const SendPtr gone = send(0, 1, "large"), next = send(0, 1, "other");
  carry(0, 1);
  carry(0, 1);
  cancel(0, gone);
  EXPECT_EQ(carry(0, 1), FrameKind::kCancel);
  // The other message counts twice: in its queue and in the table of pending RTS.
  EXPECT_EQ(at(1).matcher().size(), 2u);
  const ReceivePtr receive = this->receive(1, 0, 5);
  run();
  EXPECT_EQ(end_of(receive), "OK from 0: other");
  EXPECT_EQ(end_of(next), "OK");
}

TEST_F(EndpointTest, CancelledReceiveTakesNothing) {
  const ReceivePtr gone = receive(1, 0, 5), next = receive(1, 0, 5);
  cancel(1, gone);
  cancel(1, gone);
  EXPECT_EQ(end_of(gone), "CANCELLED: requested by the test");
  send(0, 1, "large");
  run();
  EXPECT_EQ(end_of(next), "OK from 0: large");
  cancel(1, next);
}

TEST_F(EndpointTest, ReceiveCancelledAfterCtsDropsTheData) {
  const SendPtr send = this->send(0, 1, "large");
  carry(0, 1);
  const ReceivePtr receive = this->receive(1, 0, 5);
  cancel(1, receive);
  EXPECT_EQ(end_of(receive), "CANCELLED: requested by the test");
  run();
  EXPECT_EQ(end_of(send), "OK");
}

TEST_F(EndpointTest, MessagesOfARankToItself) {
  const SendPtr eager = send(0, 0, "abc");
  EXPECT_EQ(end_of(eager), "OK");
  EXPECT_EQ(end_of(receive(0, 0, 3)), "OK from 0: abc");
  const ReceivePtr waiting = receive(0, kAnyRank, 5);
  const SendPtr large = send(0, 0, "large");
  EXPECT_EQ(end_of(large), "OK");
  EXPECT_EQ(end_of(waiting), "OK from 0: large");
  const SendPtr announced = send(0, 0, "later");
  EXPECT_EQ(end_of(announced), "");
  EXPECT_EQ(end_of(receive(0, 0, 5)), "OK from 0: later");
  EXPECT_EQ(end_of(announced), "OK");
  // Credit for messages to itself returns without a frame.
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(send(0, 0, "1234")->eager);
    EXPECT_EQ(end_of(receive(0, 0, 4)), "OK from 0: 1234");
  }
  EXPECT_FALSE(sends(0).outboxes().has(0));
}

TEST_F(EndpointTest, MessagesOfARankToItselfThatEndOtherwise) {
  const SendPtr refused = send(0, 0, "large", /*tag=*/3);
  EXPECT_EQ(end_of(receive(0, 0, 7, /*tag=*/3)),
            "INVALID_ARGUMENT: message size mismatch: got 5 bytes from rank 0 (tag 3), expected 7");
  EXPECT_EQ(end_of(refused),
            "INVALID_ARGUMENT: message size mismatch: rank 0 got 5 bytes (tag 3), expected 7");
  const SendPtr gone = send(0, 0, "large");
  cancel(0, gone);
  cancel(0, gone);
  EXPECT_EQ(end_of(gone), "CANCELLED: requested by the test");
  EXPECT_EQ(at(0).matcher().size(), 0u);
  const SendPtr late = send(0, 0, "large", /*tag=*/4, kChannel, absl::UnixEpoch());
  expire(0, absl::UnixEpoch());
  EXPECT_EQ(end_of(late),
            "DEADLINE_EXCEEDED: timed out: rank 0 has not received a message of 5 bytes (tag 4)");
  const SendPtr aborted = send(0, 0, "large");
  send(0, 0, "abc");
  abort(0);
  EXPECT_EQ(end_of(aborted), "ABORTED: broken");
}

TEST_F(EndpointTest, DeadlineEndsOperations) {
  const absl::Time start = absl::UnixEpoch();
  EXPECT_EQ(at(0).next_deadline(), absl::InfiniteFuture());
  const SendPtr late = send(0, 1, "large", /*tag=*/4, kChannel, start + absl::Seconds(2));
  const ReceivePtr first = receive(0, 1, 1, /*tag=*/4, kChannel, start + absl::Seconds(1));
  const ReceivePtr any = receive(0, kAnyRank, 1, /*tag=*/5, kChannel, start + absl::Seconds(3));
  const ReceivePtr no_deadline = receive(0, 1, 1);
  EXPECT_EQ(at(0).next_deadline(), start + absl::Seconds(1));
  carry(0, 1);
  expire(0, start + absl::Milliseconds(999));
  EXPECT_EQ(end_of(first), "");
  expire(0, start + absl::Seconds(1));
  EXPECT_EQ(end_of(first), "DEADLINE_EXCEEDED: timed out: no message (tag 4) arrived from rank 1");
  EXPECT_EQ(end_of(late), "");
  EXPECT_EQ(at(0).next_deadline(), start + absl::Seconds(2));
  expire(0, start + absl::Seconds(2));
  EXPECT_EQ(end_of(late),
            "DEADLINE_EXCEEDED: timed out: rank 1 has not received a message of 5 bytes (tag 4)");
  EXPECT_EQ(at(0).next_deadline(), start + absl::Seconds(3));
  expire(0, start + absl::Seconds(4));
  EXPECT_EQ(end_of(any), "DEADLINE_EXCEEDED: timed out: no message (tag 5) arrived from any rank");
  EXPECT_EQ(at(0).next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(sends(0).outboxes().front(1).frame.code,
            static_cast<uint32_t>(absl::StatusCode::kDeadlineExceeded));
  run();
  cancel(0, no_deadline);
}

TEST_F(EndpointTest, AbortEndsOnlyItsChannel) {
  const SendPtr queued = send(0, 1, "1234"), announced = send(0, 2, "large");
  const ReceivePtr waiting = receive(0, 1, 1), any = receive(0, kAnyRank, 1);
  const SendPtr other = send(0, 1, "ab", 0, /*channel=*/8);
  const ReceivePtr other_receive = receive(0, 1, 2, 0, /*channel=*/8);
  carry(0, 2);
  send(1, 0, "mine", /*tag=*/9);
  const SendPtr refused = send(1, 0, "large", /*tag=*/9);
  carry(1, 0);
  carry(1, 0);
  abort(0);
  EXPECT_EQ(end_of(queued), "ABORTED: broken");
  EXPECT_EQ(end_of(announced), "ABORTED: broken");
  EXPECT_EQ(end_of(waiting), "ABORTED: broken");
  EXPECT_EQ(end_of(any), "ABORTED: broken");
  EXPECT_EQ(at(0).check_open(1, kChannel), absl::AbortedError("broken"));
  EXPECT_TRUE(at(0).check_open(1, 8).ok());
  // The first reason also applies to later operations.
  act(0, [&](Effects& effects) { at(0).abort(kChannel, absl::CancelledError("again"), effects); });
  EXPECT_EQ(end_of(send(0, 1, "x")), "ABORTED: broken");
  EXPECT_EQ(end_of(receive(0, 1, 1)), "ABORTED: broken");
  const SendPtr late = send(1, 0, "larger");
  run();
  EXPECT_EQ(end_of(refused), "ABORTED: rank 0 refused a message (tag 9): ABORTED");
  EXPECT_EQ(end_of(late), "ABORTED: rank 0 refused a message (tag 0): ABORTED");
  EXPECT_EQ(end_of(other), "OK");
  EXPECT_EQ(end_of(receive(1, 0, 2, 0, /*channel=*/8)), "OK from 0: ab");
  send(1, 0, "cd", 0, /*channel=*/8);
  run();
  EXPECT_EQ(end_of(other_receive), "OK from 1: cd");
}

TEST_F(EndpointTest, AbortAfterCtsDropsTheData) {
  const SendPtr send = this->send(0, 1, "large");
  carry(0, 1);
  const ReceivePtr receive = this->receive(1, 0, 5);
  abort(1);
  EXPECT_EQ(end_of(receive), "ABORTED: broken");
  run();
  EXPECT_EQ(end_of(send), "OK");
}

TEST_F(EndpointTest, ForgottenChannelIsCancelledForGood) {
  const ReceivePtr receive = this->receive(0, 1, 1);
  const SendPtr send = this->send(0, 1, "large");
  act(0, [&](Effects& effects) { at(0).forget(kChannel, effects); });
  EXPECT_EQ(end_of(receive), "CANCELLED: the channel is closed");
  EXPECT_EQ(end_of(send), "CANCELLED: the channel is closed");
  abort(0);
  EXPECT_EQ(at(0).check_open(1, kChannel).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(at(0).channels().ended(kChannel));
  const SendPtr late = this->send(1, 0, "large");
  run();
  EXPECT_EQ(end_of(late), "CANCELLED: rank 0 refused a message (tag 0): CANCELLED");
}

TEST_F(EndpointTest, ErrorsNameRanksAsTheChannelDoes) {
  for (int rank = 0; rank < 3; ++rank) at(rank).channels().name_ranks(kChannel, {{0, 10}, {1, 11}});
  const absl::Time start = absl::UnixEpoch();
  const SendPtr late = send(0, 1, "large", 0, kChannel, start);
  const SendPtr stranger = send(0, 2, "large", 0, kChannel, start);
  const ReceivePtr receive = this->receive(0, 1, 1, 0, kChannel, start);
  expire(0, start);
  EXPECT_EQ(end_of(late),
            "DEADLINE_EXCEEDED: timed out: rank 11 has not received a message of 5 bytes (tag 0)");
  EXPECT_EQ(
      end_of(stranger),
      "DEADLINE_EXCEEDED: timed out: rank 2 of the world has not received a message of 5 bytes (tag 0)");
  EXPECT_EQ(end_of(receive), "DEADLINE_EXCEEDED: timed out: no message (tag 0) arrived from rank 11");

  const SendPtr refused = send(0, 1, "large");
  const ReceivePtr another = this->receive(1, 0, 7);
  run();
  EXPECT_EQ(end_of(refused),
            "INVALID_ARGUMENT: message size mismatch: rank 11 got 5 bytes (tag 0), expected 7");
  EXPECT_EQ(end_of(another),
            "INVALID_ARGUMENT: message size mismatch: got 5 bytes from rank 10 (tag 0), expected 7");

  const SendPtr gone = send(0, 1, "large");
  carry(0, 1);
  const ReceivePtr asked = this->receive(1, 0, 5);
  cancel(0, gone);
  run();
  EXPECT_EQ(end_of(asked), "ABORTED: rank 10 cancelled its message before the data was sent: CANCELLED");

  const SendPtr lost = send(0, 1, "1234");
  lose(0, 1);
  EXPECT_EQ(end_of(lost), "UNAVAILABLE: rank 11 has left");
  EXPECT_EQ(end_of(send(0, 1, "x")), "UNAVAILABLE: rank 11 has left");
  EXPECT_EQ(end_of(send(0, 1, "x", 0, /*channel=*/8)), "UNAVAILABLE: rank 1 has left");
}

}  // namespace
}  // namespace gradwire::collectives::cpu
