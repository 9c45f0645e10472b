#include "gradwire/collectives/cpu/p2p/send_table.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/endpoint_fixture.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

// Rank 0 sends to rank 1, whose answers come as the test says them; rank 1 does nothing by itself.
class SendTableTest : public EndpointTest {
 protected:
  SendPtr send(const std::string& text) { return EndpointTest::send(0, 1, text); }
  SendTable& table() { return sends(0); }
  SendTable::Outgoing take() { return EndpointTest::take(0, 1); }
  // A message that has been announced, without rank 1.
  SendPtr pending_rts(const std::string& text = "large") {
    const SendPtr send = this->send(text);
    EXPECT_EQ(take().frame.kind, FrameKind::kRts);
    rts_sent(0, send);
    return send;
  }
  SendPtr cleared_send() {
    const SendPtr send = pending_rts();
    say({.kind = FrameKind::kCts, .id = send->id});
    return send;
  }
  // From rank 1.
  void say(const Frame& frame) { EXPECT_TRUE(arrive(1, 0, frame).ok()); }
  void nack(const SendPtr& send, absl::StatusCode code, uint64_t size = 0) {
    say({.kind = FrameKind::kNack, .code = static_cast<uint32_t>(code), .size = size, .id = send->id});
  }
  void expect_cancel(const SendPtr& send, absl::StatusCode code) {
    const SendTable::Outgoing next = take();
    EXPECT_EQ(next.frame.kind, FrameKind::kCancel);
    EXPECT_EQ(next.frame.id, send->id);
    EXPECT_EQ(next.frame.code, static_cast<uint32_t>(code));
    EXPECT_EQ(next.send, nullptr);
  }
  // Nothing counts as announced, and the window holds `room` short messages more.
  void expect_room(int room) {
    std::vector<SendPtr> probes;
    for (int i = 0; i < 3; ++i) probes.push_back(send("large"));
    EXPECT_EQ(end_of(probes[0]), "");
    EXPECT_EQ(end_of(probes[1]), "");
    EXPECT_EQ(end_of(probes[2]), "RESOURCE_EXHAUSTED: rank 1 has left 2 messages of this rank waiting");
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
  // Late words of the carrier change nothing.
  sent(0, send);
  unsent(0, send, /*known=*/false, absl::UnavailableError("late"));
  rts_sent(0, send, absl::UnavailableError("late"));
  expect_room(1);
}

TEST_F(SendTableTest, LongMessageIsAnnouncedAndAskedFor) {
  const SendPtr send = this->send("large");
  EXPECT_EQ(send->stage, Send::Stage::kQueued);
  const SendTable::Outgoing announcement = take();
  EXPECT_EQ(announcement.frame.kind, FrameKind::kRts);
  EXPECT_EQ(announcement.frame.size, 5u);
  EXPECT_EQ(announcement.frame.id, send->id);
  EXPECT_NE(send->id, 0u);
  EXPECT_EQ(send->stage, Send::Stage::kSendingRts);
  rts_sent(0, send);
  EXPECT_EQ(send->stage, Send::Stage::kRtsSent);
  EXPECT_FALSE(table().outboxes().has(1));
  ranks_[0]->woken.clear();
  say({.kind = FrameKind::kCts, .id = send->id});
  EXPECT_EQ(send->stage, Send::Stage::kCleared);
  EXPECT_EQ(ranks_[0]->woken, std::vector<int>{1});
  // Asked for twice, or refused after that: it is sent once.
  say({.kind = FrameKind::kCts, .id = send->id});
  nack(send, absl::StatusCode::kAborted);
  const SendTable::Outgoing data = take();
  EXPECT_EQ(data.frame.kind, FrameKind::kData);
  EXPECT_EQ(data.frame.id, send->id);
  EXPECT_EQ(data.frame.size, 5u);
  say({.kind = FrameKind::kCts, .id = send->id});
  EXPECT_FALSE(table().outboxes().has(1));
  EXPECT_EQ(end_of(send), "");
  sent(0, send);
  EXPECT_EQ(end_of(send), "OK");
  expect_room(2);
}

TEST_F(SendTableTest, AnswersThatComeWhileItIsAnnouncedWait) {
  const SendPtr asked = send("large");
  take();
  say({.kind = FrameKind::kCts, .id = asked->id});
  // After the kCts no answer counts.
  nack(asked, absl::StatusCode::kAborted);
  EXPECT_FALSE(table().outboxes().has(1));
  rts_sent(0, asked);
  EXPECT_EQ(asked->stage, Send::Stage::kCleared);
  EXPECT_EQ(take().frame.kind, FrameKind::kData);
  sent(0, asked);
  EXPECT_EQ(end_of(asked), "OK");

  const SendPtr refused = send("large");
  take();
  nack(refused, absl::StatusCode::kAborted);
  nack(refused, absl::StatusCode::kCancelled);
  say({.kind = FrameKind::kCts, .id = refused->id});
  EXPECT_EQ(end_of(refused), "");
  rts_sent(0, refused);
  EXPECT_EQ(end_of(refused), "ABORTED: rank 1 does not take a message (tag 0): ABORTED");
  // The receiver knows.
  expect_room(2);
}

TEST_F(SendTableTest, CancelledWhileQueuedNeverWas) {
  const SendPtr eager = send("1234"), large = send("large"), other = send("abcd");
  cancel(0, eager);
  cancel(0, large);
  EXPECT_EQ(end_of(eager), "CANCELLED: enough");
  EXPECT_EQ(end_of(large), "CANCELLED: enough");
  cancel(0, large);
  EXPECT_EQ(table().outboxes().size(), 1u);
  EXPECT_EQ(take().send, other);
  sent(0, other);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledWhileAnnouncingIsTakenBackThen) {
  const SendPtr send = this->send("large"), next = this->send("1234");
  take();
  cancel(0, send);
  cancel(0, send);
  EXPECT_EQ(ranks_[0]->retracted, std::vector<SendPtr>{send});
  EXPECT_EQ(end_of(send), "");
  // It is asked for before the receiver hears that.
  say({.kind = FrameKind::kCts, .id = send->id});
  rts_sent(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: enough");
  expect_cancel(send, absl::StatusCode::kCancelled);
  EXPECT_EQ(take().send, next);
  sent(0, next);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledAndRefusedWhileAnnouncingNeedsNoCancel) {
  const SendPtr send = this->send("large");
  take();
  cancel(0, send);
  nack(send, absl::StatusCode::kAborted);
  rts_sent(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: enough");
  expect_room(2);
}

TEST_F(SendTableTest, AnnouncementThatFailsEndsTheMessage) {
  const SendPtr send = this->send("large");
  take();
  rts_sent(0, send, absl::UnavailableError("no way"));
  EXPECT_EQ(end_of(send), "UNAVAILABLE: no way");
  expect_room(2);
}

TEST_F(SendTableTest, CancelledAfterTheAnnouncementIsTakenBackFirst) {
  const SendPtr send = pending_rts(), next = this->send("1234");
  cancel(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: enough");
  EXPECT_TRUE(ranks_[0]->retracted.empty());
  expect_cancel(send, absl::StatusCode::kCancelled);
  // They crossed the kCancel.
  say({.kind = FrameKind::kCts, .id = send->id});
  nack(send, absl::StatusCode::kAborted);
  EXPECT_EQ(take().send, next);
  sent(0, next);
  expect_room(1);
}

TEST_F(SendTableTest, CancelledWhileClearedSendsNoData) {
  const SendPtr send = cleared_send();
  cancel(0, send);
  EXPECT_EQ(end_of(send), "CANCELLED: enough");
  expect_cancel(send, absl::StatusCode::kCancelled);
  expect_room(2);
}

TEST_F(SendTableTest, CancelledWhileSendingEndsWhenTheCarrierLetsGo) {
  const SendPtr gone = cleared_send();
  take();
  cancel(0, gone);
  cancel(0, gone);
  EXPECT_EQ(ranks_[0]->retracted, std::vector<SendPtr>{gone});
  EXPECT_EQ(end_of(gone), "");
  released(0, gone);
  EXPECT_EQ(end_of(gone), "CANCELLED: enough");
  released(0, gone);

  // All of it was sent before the carrier could let go.
  const SendPtr late = cleared_send();
  take();
  cancel(0, late);
  sent(0, late);
  EXPECT_EQ(end_of(late), "OK");

  const SendPtr stopped = cleared_send();
  take();
  cancel(0, stopped);
  unsent(0, stopped, /*known=*/true, absl::OkStatus());
  EXPECT_EQ(end_of(stopped), "CANCELLED: enough");
  expect_cancel(stopped, absl::StatusCode::kCancelled);

  const SendPtr eager = send("1234");
  take();
  cancel(0, eager);
  EXPECT_EQ(end_of(eager), "");
  unsent(0, eager, /*known=*/false, absl::UnavailableError("no way"));
  EXPECT_EQ(end_of(eager), "CANCELLED: enough");
  expect_room(2);
}

TEST_F(SendTableTest, TransmissionThatFailsEndsTheMessage) {
  const SendPtr eager = send("1234");
  take();
  unsent(0, eager, /*known=*/false, absl::UnavailableError("no way"));
  EXPECT_EQ(end_of(eager), "UNAVAILABLE: no way");
  EXPECT_FALSE(table().outboxes().has(1));
  const SendPtr large = cleared_send();
  take();
  unsent(0, large, /*known=*/true, absl::UnavailableError("no way"));
  EXPECT_EQ(end_of(large), "UNAVAILABLE: no way");
  expect_cancel(large, absl::StatusCode::kUnavailable);
  expect_room(2);
}

TEST_F(SendTableTest, FullWindowAnnouncesUntilCreditComes) {
  const SendPtr first = send("1234"), second = send("5678"), third = send("9");
  EXPECT_TRUE(first->eager);
  EXPECT_TRUE(second->eager);
  EXPECT_FALSE(third->eager);
  // Others have a window of their own.
  const SendPtr other = EndpointTest::send(0, 2, "1234");
  EXPECT_TRUE(other->eager);
  for (const SendPtr& each : {first, second, third}) EXPECT_EQ(take().send, each);
  sent(0, first);
  sent(0, second);
  rts_sent(0, third);
  nack(third, absl::StatusCode::kAborted);
  EXPECT_EQ(EndpointTest::take(0, 2).send, other);
  sent(0, other);
  say({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  expect_room(1);
  const absl::Status status = arrive(1, 0, {.kind = FrameKind::kCredit, .size = 4 + kMessageCost + 1});
  EXPECT_EQ(status, absl::InvalidArgumentError("credit of 69 bytes, expected at most 68 that were sent"));
  say({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  EXPECT_FALSE(arrive(1, 0, {.kind = FrameKind::kCredit, .size = 1}).ok());
  expect_room(2);
}

TEST_F(SendTableTest, WindowIsTakenToTheLastByte) {
  EXPECT_FALSE(table().take_window(1, 5));
  EXPECT_TRUE(table().take_window(1, 0));
  EXPECT_TRUE(table().return_window(1, kMessageCost).ok());
  SendTable table(2, 1000, 1, 1000);
  EXPECT_FALSE(table.take_window(1, 1000 - kMessageCost + 1));
  EXPECT_TRUE(table.take_window(1, 1000 - kMessageCost));
  EXPECT_FALSE(table.take_window(1, 0));
  EXPECT_TRUE(table.take_window(0, 1));
}

TEST_F(SendTableTest, AnswersForMessagesOfOthersAreIgnored) {
  const SendPtr send = pending_rts();
  const uint32_t aborted = static_cast<uint32_t>(absl::StatusCode::kAborted);
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kCts, .id = send->id}).ok());
  EXPECT_TRUE(arrive(2, 0, {.kind = FrameKind::kNack, .code = aborted, .id = send->id}).ok());
  EXPECT_EQ(table().find_pending_rts(2, send->id), nullptr);
  EXPECT_EQ(table().find_pending_rts(1, send->id), send);
  EXPECT_EQ(send->stage, Send::Stage::kRtsSent);
  // Nor is there an answer for what was not announced.
  const SendPtr eager = this->send("1234"), queued = this->send("large");
  for (const SendPtr& each : {eager, queued}) {
    say({.kind = FrameKind::kCts, .id = each->id});
    nack(each, absl::StatusCode::kAborted);
    EXPECT_EQ(each->stage, Send::Stage::kQueued);
    EXPECT_EQ(end_of(each), "");
    cancel(0, each);
  }
  say({.kind = FrameKind::kCts, .id = 1000});
  EXPECT_EQ(table().find(1000), nullptr);
  EXPECT_EQ(table().outboxes().size(), 0u);
  nack(send, absl::StatusCode::kAborted);
  expect_room(2);
}

TEST_F(SendTableTest, CreditForMessagesThatWereNotSentDoesNoHarm) {
  const SendPtr queued = send("1234");
  say({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  cancel(0, queued);
  expect_room(2);
  const SendPtr sending = send("1234");
  take();
  say({.kind = FrameKind::kCredit, .size = 4 + kMessageCost});
  unsent(0, sending, /*known=*/false, absl::UnavailableError("no way"));
  expect_room(2);
}

TEST_F(SendTableTest, WindowThatWasNotUsedIsGivenBack) {
  ASSERT_TRUE(table().take_window(1, 4));
  expect_room(1);
  table().untake_window(1, 4);
  expect_room(2);
}

TEST_F(SendTableTest, AnswersAreCountedApart) {
  const SendPtr queued = send("1234");
  EXPECT_EQ(table().outboxes().answers(1), 0u);
  table().outboxes().push(1, {{.kind = FrameKind::kCredit}, nullptr});
  table().outboxes().push(1, {{.kind = FrameKind::kCredit}, nullptr});
  EXPECT_EQ(table().outboxes().answers(1), 2u);
  EXPECT_EQ(take().send, queued);
  sent(0, queued);
  EXPECT_EQ(table().outboxes().answers(1), 2u);
  take();
  EXPECT_EQ(table().outboxes().answers(1), 1u);
  table().outboxes().close(1);
  EXPECT_EQ(table().outboxes().answers(1), 0u);
}

TEST_F(SendTableTest, ClosedOutboxTakesNothing) {
  const SendPtr announced = pending_rts();
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
  // Those that are queued come first.
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
