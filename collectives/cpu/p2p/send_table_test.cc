#include "gradwire/collectives/cpu/p2p/send_table.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/endpoint_fixture.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

// Rank 0 sends to rank 1. The test writes the answers of rank 1, which does nothing on its own.
class SendTableTest : public EndpointTest {
 protected:
  SendPtr send(const std::string& text) { return EndpointTest::send(0, 1, text); }
  SendTable& table() { return sends(0); }
  SendTable::Outgoing take() { return EndpointTest::take(0, 1); }
  // Sends a message and its RTS, which is not delivered to rank 1.
  SendPtr sent_rts(const std::string& text = "large") {
    const SendPtr send = this->send(text);
    EXPECT_EQ(take().frame.kind, FrameKind::kRts);
    rts_sent(0, send);
    return send;
  }
  SendPtr cts_received_send() {
    const SendPtr send = sent_rts();
    from_peer({.kind = FrameKind::kCts, .id = send->id});
    return send;
  }
  // Delivers a frame from rank 1 to rank 0.
  void from_peer(const Frame& frame) { EXPECT_TRUE(arrive(1, 0, frame).ok()); }
  void nack(const SendPtr& send, absl::StatusCode code, uint64_t size = 0) {
    from_peer({.kind = FrameKind::kNack, .code = static_cast<uint32_t>(code), .size = size, .id = send->id});
  }
  void expect_cancel(const SendPtr& send, absl::StatusCode code) {
    const SendTable::Outgoing next = take();
    EXPECT_EQ(next.frame.kind, FrameKind::kCancel);
    EXPECT_EQ(next.frame.id, send->id);
    EXPECT_EQ(next.frame.code, static_cast<uint32_t>(code));
    EXPECT_EQ(next.send, nullptr);
  }
  // Expects that no RTS is pending, and that the window has room for exactly `room` more short messages.
  void expect_room(int room) {
    std::vector<SendPtr> probes;
    for (int i = 0; i < 3; ++i) probes.push_back(send("large"));
    EXPECT_EQ(end_of(probes[0]), "");
    EXPECT_EQ(end_of(probes[1]), "");
    EXPECT_EQ(
        end_of(probes[2]),
        "RESOURCE_EXHAUSTED: too many pending messages: rank 1 has not received 2 messages of this rank");
    cancel(0, probes[0]);
    cancel(0, probes[1]);
    std::vector<SendPtr> eager;
    for (int i = 0; i < 3; ++i) eager.push_back(send("1234"));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(eager[i]->eager, i < room) << i;
      cancel(0, eager[i]);
    }
    EXPECT_FALSE(table().outboxes().has(1));
  }
};

TEST_F(SendTableTest, ShortMessageLeavesAtOnce) {
  const SendPtr send = this->send("1234");
  EXPECT_TRUE(send->eager);
  EXPECT_EQ(ranks_[0]->woken, std::vector<int>{1});
  EXPECT_EQ(table().outboxes().size(), 1u);
  EXPECT_FALSE(table().outboxes().has(2));
  EXPECT_EQ(table().outboxes().front(1).send, send);
  const SendTable::Outgoing next = take();
  EXPECT_EQ(next.frame.kind, FrameKind::kEager);
  EXPECT_EQ(next.frame.channel, kChannel);
  EXPECT_EQ(next.frame.size, 4u);
  EXPECT_EQ(next.frame.id, 0u);
  EXPECT_EQ(send->stage, Send::Stage::kSending);
  EXPECT_EQ(end_of(send), "");
  sent(0, send);
  EXPECT_EQ(end_of(send), "OK");
  // Late reports of the carrier change nothing.
  sent(0, send);
  unsent(0, send, /*known=*/false, absl::UnavailableError("late"));
  rts_sent(0, send, absl::UnavailableError("late"));
  expect_room(1);
}

TEST_F(SendTableTest, LongMessageUsesRendezvous) {
  const SendPtr send = this->send("large");
  EXPECT_EQ(send->stage, Send::Stage::kQueued);
  const SendTable::Outgoing rts = take();
  EXPECT_EQ(rts.frame.kind, FrameKind::kRts);
  EXPECT_EQ(rts.frame.size, 5u);
  EXPECT_EQ(rts.frame.id, send->id);
  EXPECT_NE(send->id, 0u);
  EXPECT_EQ(send->stage, Send::Stage::kSendingRts);
  rts_sent(0, send);
  EXPECT_EQ(send->stage, Send::Stage::kRtsSent);
  EXPECT_FALSE(table().outboxes().has(1));
  ranks_[0]->woken.clear();
  from_peer({.kind = FrameKind::kCts, .id = send->id});
  EXPECT_EQ(send->stage, Send::Stage::kCtsReceived);
  EXPECT_EQ(ranks_[0]->woken, std::vector<int>{1});
  // A second CTS, or a NACK after it, is ignored: the data is sent once.
  from_peer({.kind = FrameKind::kCts, .id = send->id});
  nack(send, absl::StatusCode::kAborted);
  const SendTable::Outgoing data = take();
  EXPECT_EQ(data.frame.kind, FrameKind::kData);
  EXPECT_EQ(data.frame.id, send->id);
  EXPECT_EQ(data.frame.size, 5u);
  from_peer({.kind = FrameKind::kCts, .id = send->id});
  EXPECT_FALSE(table().outboxes().has(1));
  EXPECT_EQ(end_of(send), "");
  sent(0, send);
  EXPECT_EQ(end_of(send), "OK");
  expect_room(2);
}

TEST_F(SendTableTest, AnswersWhileSendingRtsTakeEffectAfterwards) {
  const SendPtr asked = send("large");
  take();
  from_peer({.kind = FrameKind::kCts, .id = asked->id});
  // Answers after the kCts are ignored.
  nack(asked, absl::StatusCode::kAborted);
  EXPECT_FALSE(table().outboxes().has(1));
  rts_sent(0, asked);
  EXPECT_EQ(asked->stage, Send::Stage::kCtsReceived);
  EXPECT_EQ(take().frame.kind, FrameKind::kData);
  sent(0, asked);
  EXPECT_EQ(end_of(asked), "OK");

  const SendPtr refused = send("large");
  take();
  nack(refused, absl::StatusCode::kAborted);
  nack(refused, absl::StatusCode::kCancelled);
  from_peer({.kind = FrameKind::kCts, .id = refused->id});
  EXPECT_EQ(end_of(refused), "");
  rts_sent(0, refused);
  EXPECT_EQ(end_of(refused), "ABORTED: rank 1 refused a message (tag 0): ABORTED");
  // The receiver refused the message, so no kCancel is sent.
  expect_room(2);
}

TEST_F(SendTableTest, CancelledWhileQueuedSendsNothing) {
  const SendPtr eager = send("1234"), large = send("large"), other = send("abcd");
  cancel(0, eager);
  cancel(0, large);
  EXPECT_EQ(end_of(eager), "CANCELLED: requested by the test");
  EXPECT_EQ(end_of(large), "CANCELLED: requested by the test");
  cancel(0, large);
  EXPECT_EQ(table().outboxes().size(), 1u);
  EXPECT_EQ(take().send, other);
  sent(0, other);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledWhileSendingRtsSendsCancelAfterwards) {
  const SendPtr send = this->send("large"), next = this->send("1234");
  take();
  cancel(0, send);
  cancel(0, send);
  EXPECT_EQ(ranks_[0]->retracted, std::vector<SendPtr>{send});
  EXPECT_EQ(end_of(send), "");
  // The CTS arrives before the receiver has received the kCancel.
  from_peer({.kind = FrameKind::kCts, .id = send->id});
  rts_sent(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: requested by the test");
  expect_cancel(send, absl::StatusCode::kCancelled);
  EXPECT_EQ(take().send, next);
  sent(0, next);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledAndRefusedWhileSendingRtsSendsNoCancel) {
  const SendPtr send = this->send("large");
  take();
  cancel(0, send);
  nack(send, absl::StatusCode::kAborted);
  rts_sent(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: requested by the test");
  expect_room(2);
}

TEST_F(SendTableTest, FailedRtsEndsTheMessage) {
  const SendPtr send = this->send("large");
  take();
  rts_sent(0, send, absl::UnavailableError("not connected"));
  EXPECT_EQ(end_of(send), "UNAVAILABLE: not connected");
  expect_room(2);
}

TEST_F(SendTableTest, CancelledAfterRtsSendsCancelFirst) {
  const SendPtr send = sent_rts(), next = this->send("1234");
  cancel(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: requested by the test");
  EXPECT_TRUE(ranks_[0]->retracted.empty());
  expect_cancel(send, absl::StatusCode::kCancelled);
  // These answers crossed the kCancel.
  from_peer({.kind = FrameKind::kCts, .id = send->id});
  nack(send, absl::StatusCode::kAborted);
  EXPECT_EQ(take().send, next);
  sent(0, next);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledWhileClearedSendsNoData) {
  const SendPtr send = cts_received_send();
  cancel(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: requested by the test");
  expect_cancel(send, absl::StatusCode::kCancelled);
  expect_room(2);
}

TEST_F(SendTableTest, CancelledWhileSendingEndsWhenTheCarrierReleasesIt) {
  const SendPtr gone = cts_received_send();
  take();
  cancel(0, gone);
  cancel(0, gone);
  EXPECT_EQ(ranks_[0]->retracted, std::vector<SendPtr>{gone});
  EXPECT_EQ(end_of(gone), "");
  released(0, gone);
  EXPECT_EQ(end_of(gone), "CANCELLED: requested by the test");
  released(0, gone);

  // All data was sent before the carrier released the memory.
  const SendPtr late = cts_received_send();
  take();
  cancel(0, late);
  sent(0, late);
  EXPECT_EQ(end_of(late), "OK");

  const SendPtr stopped = cts_received_send();
  take();
  cancel(0, stopped);
  unsent(0, stopped, /*known=*/true, absl::OkStatus());
  EXPECT_EQ(end_of(stopped), "CANCELLED: requested by the test");
  expect_cancel(stopped, absl::StatusCode::kCancelled);

  const SendPtr eager = send("1234");
  take();
  cancel(0, eager);
  EXPECT_EQ(end_of(eager), "");
  unsent(0, eager, /*known=*/false, absl::UnavailableError("not connected"));
  EXPECT_EQ(end_of(eager), "CANCELLED: requested by the test");
  expect_room(2);
}

TEST_F(SendTableTest, TransmissionThatFailsEndsTheMessage) {
  const SendPtr eager = send("1234");
  take();
  unsent(0, eager, /*known=*/false, absl::UnavailableError("not connected"));
  EXPECT_EQ(end_of(eager), "UNAVAILABLE: not connected");
  EXPECT_FALSE(table().outboxes().has(1));
  const SendPtr large = cts_received_send();
  take();
  unsent(0, large, /*known=*/true, absl::UnavailableError("not connected"));
  EXPECT_EQ(end_of(large), "UNAVAILABLE: not connected");
  expect_cancel(large, absl::StatusCode::kUnavailable);
  expect_room(2);
}

TEST_F(SendTableTest, FullWindowUsesRendezvousUntilCredit) {
  const SendPtr first = send("1234"), second = send("5678"), third = send("9");
  EXPECT_TRUE(first->eager);
  EXPECT_TRUE(second->eager);
  EXPECT_FALSE(third->eager);
  // Each rank has its own window.
  const SendPtr other = EndpointTest::send(0, 2, "1234");
  EXPECT_TRUE(other->eager);
  for (const SendPtr& each : {first, second, third}) EXPECT_EQ(take().send, each);
  sent(0, first);
  sent(0, second);
  rts_sent(0, third);
  nack(third, absl::StatusCode::kAborted);
  EXPECT_EQ(EndpointTest::take(0, 2).send, other);
  sent(0, other);
  from_peer({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  expect_room(1);
  const absl::Status status = arrive(1, 0, {.kind = FrameKind::kCredit, .size = 4 + kMessageCost + 1});
  EXPECT_EQ(status, absl::InvalidArgumentError("credit of 69 bytes, expected at most 68 that were sent"));
  from_peer({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  EXPECT_FALSE(arrive(1, 0, {.kind = FrameKind::kCredit, .size = 1}).ok());
  expect_room(2);
}

TEST_F(SendTableTest, WindowIsTakenToTheLastByte) {
  EXPECT_FALSE(table().take_window(1, 5));
  EXPECT_TRUE(table().take_window(1, 0));
  EXPECT_TRUE(table().on_credit(1, kMessageCost).ok());
  SendTable table(2, 1000, 1, 1000);
  EXPECT_FALSE(table.take_window(1, 1000 - kMessageCost + 1));
  EXPECT_TRUE(table.take_window(1, 1000 - kMessageCost));
  EXPECT_FALSE(table.take_window(1, 0));
  EXPECT_TRUE(table.take_window(0, 1));
}

TEST_F(SendTableTest, AnswersForMessagesOfOthersAreIgnored) {
  const SendPtr send = sent_rts();
  const uint32_t aborted = static_cast<uint32_t>(absl::StatusCode::kAborted);
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kCts, .id = send->id}).ok());
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kNack, .code = aborted, .id = send->id}).ok());
  EXPECT_EQ(table().find_pending_rts(2, send->id), nullptr);
  EXPECT_EQ(table().find_pending_rts(1, send->id), send);
  EXPECT_EQ(send->stage, Send::Stage::kRtsSent);
  // Answers to a message that was not announced are ignored, too.
  const SendPtr eager = this->send("1234"), queued = this->send("large");
  for (const SendPtr& each : {eager, queued}) {
    from_peer({.kind = FrameKind::kCts, .id = each->id});
    nack(each, absl::StatusCode::kAborted);
    EXPECT_EQ(each->stage, Send::Stage::kQueued);
    EXPECT_EQ(end_of(each), "");
    cancel(0, each);
  }
  from_peer({.kind = FrameKind::kCts, .id = 1000});
  EXPECT_EQ(table().find(1000), nullptr);
  EXPECT_EQ(table().outboxes().size(), 0u);
  nack(send, absl::StatusCode::kAborted);
  expect_room(2);
}

TEST_F(SendTableTest, CreditForMessagesThatWereNotSentDoesNoHarm) {
  const SendPtr queued = send("1234");
  from_peer({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  cancel(0, queued);
  expect_room(2);
  const SendPtr sending = send("1234");
  take();
  from_peer({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  unsent(0, sending, /*known=*/false, absl::UnavailableError("not connected"));
  expect_room(2);
}

TEST_F(SendTableTest, WindowThatWasNotUsedIsGivenBack) {
  ASSERT_TRUE(table().take_window(1, 4));
  expect_room(1);
  table().release_window(1, 4);
  expect_room(2);
}

TEST_F(SendTableTest, AnswersAreCountedApart) {
  const SendPtr queued = send("1234");
  EXPECT_EQ(table().outboxes().control_frames(1), 0u);
  table().outboxes().push(1, {{.kind = FrameKind::kCredit}, nullptr});
  table().outboxes().push(1, {{.kind = FrameKind::kCredit}, nullptr});
  EXPECT_EQ(table().outboxes().control_frames(1), 2u);
  EXPECT_EQ(take().send, queued);
  sent(0, queued);
  EXPECT_EQ(table().outboxes().control_frames(1), 2u);
  take();
  EXPECT_EQ(table().outboxes().control_frames(1), 1u);
  table().outboxes().close(1);
  EXPECT_EQ(table().outboxes().control_frames(1), 0u);
}

TEST_F(SendTableTest, ClosedOutboxTakesNothing) {
  const SendPtr announced = sent_rts();
  const SendPtr queued = send("1234");
  table().outboxes().push(1, {{.kind = FrameKind::kGoodbye}, nullptr});
  EXPECT_EQ(table().outboxes().size(), 2u);
  table().outboxes().close(1);
  EXPECT_EQ(table().outboxes().size(), 0u);
  table().outboxes().push(1, {{.kind = FrameKind::kGoodbye}, nullptr});
  cancel(0, announced);
  cancel(0, queued);
  EXPECT_EQ(table().outboxes().size(), 0u);
  table().outboxes().push(2, {{.kind = FrameKind::kGoodbye}, nullptr});
  EXPECT_EQ(EndpointTest::take(0, 2).frame.kind, FrameKind::kGoodbye);
}

TEST_F(SendTableTest, SelectsInTheOrderOfSending) {
  std::vector<SendPtr> all;
  for (int i = 0; i < 2; ++i) all.push_back(send("1234"));
  for (int i = 0; i < 2; ++i) all.push_back(send("large"));
  EXPECT_EQ(table().select([](const Send&) { return true; }), all);
  // Queued messages come first.
  for (int i = 0; i < 2; ++i) take();
  EXPECT_EQ(table().select([](const Send&) { return true; }),
            std::vector<SendPtr>({all[2], all[3], all[0], all[1]}));
  for (int i = 0; i < 2; ++i) sent(0, all[static_cast<std::size_t>(i)]);
  EXPECT_EQ(table().select([](const Send& each) { return !each.eager; }),
            std::vector<SendPtr>(all.begin() + 2, all.end()));
  for (const SendPtr& each : all) cancel(0, each);
}

}  // namespace
}  // namespace gradwire::collectives::cpu
