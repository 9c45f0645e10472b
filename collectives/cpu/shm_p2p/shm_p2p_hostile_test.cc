// Tests with a member that writes arbitrary records into its rings.

#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p_test_group.h"

namespace gradwire::collectives::cpu {
namespace {

// Rank 0 of two is a correct member; the test plays rank 1.
class ShmP2pHostileTest : public testing::Test {
 protected:
  ShmP2pHostileTest() {
    const auto store = std::make_shared<store::HashStore>();
    std::thread other([&] {
      memory_ =
          *HostMemory::join({.index = 1, .size = 2, .store = store, .slot_bytes = ShmCarrier::slot_bytes(2)});
    });
    victim_ = *ShmP2p::join({.rank = 0, .size = 2, .store = store});
    other.join();
    to_victim_.emplace(ShmCarrier::ring(*memory_, 1, 0));
    from_victim_.emplace(ShmCarrier::ring(*memory_, 0, 1));
    EXPECT_TRUE(to_victim_->fits(kRingPieceBytes));
  }

  void write(RingRecord record) {
    record.payload = payload_.data();
    ASSERT_TRUE(to_victim_->fits(record.size <= kRingPieceBytes ? record.size : 0));
    to_victim_->write(record);
  }
  void rts(uint64_t id, uint64_t size) { write({.kind = FrameKind::kRts, .size = size, .id = id}); }
  void begin(uint64_t id, uint64_t size) { write({.kind = FrameKind::kBegin, .size = size, .id = id}); }
  void piece(uint64_t id, uint64_t size) { write({.kind = FrameKind::kData, .size = size, .id = id}); }
  // Expects that the victim has lost this rank because of a protocol violation.
  void expect_lost(const std::string& why) {
    std::string data(1, ' ');
    const absl::Status status = victim_->receive(1, 77, span(data), timeout()).result().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << why << status;
    EXPECT_EQ(victim_->send(1, 0, span(data), timeout()).result().code(), absl::StatusCode::kInvalidArgument);
  }

  // Waits for the next record of the victim, and returns it without its payload.
  RingRecord read() {
    const absl::Time late = timeout();
    while (!from_victim_->has_record() && Clock::system().now() < late) std::this_thread::yield();
    if (!from_victim_->has_record()) return {};
    absl::StatusOr<RingRecord> record = from_victim_->peek();
    EXPECT_TRUE(record.ok()) << record.status();
    if (!record.ok()) return {};
    if (from_victim_->release(*record)) memory_->signal();
    record->payload = nullptr;
    return *record;
  }

  const std::string payload_ = std::string(kRingPieceBytes, 'p');
  std::unique_ptr<HostMemory> memory_;
  std::shared_ptr<ShmP2p> victim_;
  std::optional<P2pRingWriter> to_victim_;
  std::optional<P2pRingReader> from_victim_;
};

TEST_F(ShmP2pHostileTest, PieceOfUnknownMessage) {
  piece(5, 10);
  expect_lost("a piece");
}

TEST_F(ShmP2pHostileTest, PieceBeyondTheMessage) {
  begin(5, 20'000);
  piece(5, kRingPieceBytes);
  piece(5, 4'000);
  expect_lost("the second piece");
}

TEST_F(ShmP2pHostileTest, PieceWithoutCts) {
  rts(5, 100);
  piece(5, 100);
  expect_lost("a piece");
}

TEST_F(ShmP2pHostileTest, PieceBeyondTheReceive) {
  std::string data(100, ' ');
  const Future<int> receive = victim_->receive(1, 0, span(data), timeout());
  rts(5, 100);
  piece(5, 90);
  piece(5, 20);
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kInvalidArgument);
  expect_lost("the second piece");
}

TEST_F(ShmP2pHostileTest, EmptyPieces) {
  begin(5, 20'000);
  piece(5, 0);
  expect_lost("an empty piece");
}

TEST_F(ShmP2pHostileTest, MessageLongerThanTheWindow) {
  begin(5, kEagerWindow + 1);
  expect_lost("kBegin");
}

TEST_F(ShmP2pHostileTest, MessageWithoutEnd) {
  begin(5, UINT64_MAX);
  expect_lost("kBegin");
}

TEST_F(ShmP2pHostileTest, MessageWithinAnother) {
  begin(5, 20'000);
  begin(6, 20'000);
  expect_lost("the second");
}

TEST_F(ShmP2pHostileTest, SameIdTwice) {
  rts(5, 100);
  rts(5, 100);
  expect_lost("the second");
}

TEST_F(ShmP2pHostileTest, BeginAfterRtsWithTheSameId) {
  rts(5, 100);
  begin(5, 100);
  expect_lost("the second");
}

TEST_F(ShmP2pHostileTest, RtsWithTheIdOfADiscardedMessage) {
  std::string data(100, ' '), other(50, ' ');
  const Future<int> unwanted = victim_->receive(1, 0, span(other), timeout());
  const Future<int> receive = victim_->receive(1, 1, span(data), timeout());
  begin(5, 20'000);
  EXPECT_EQ(unwanted.result().status().code(), absl::StatusCode::kInvalidArgument);
  write({.kind = FrameKind::kRts, .tag = 1, .size = 100, .id = 5});
  piece(5, kRingPieceBytes);
  EXPECT_EQ(receive.result().status().code(), absl::StatusCode::kInvalidArgument);
  expect_lost("the RTS");
}

TEST_F(ShmP2pHostileTest, RtsWithoutId) {
  rts(0, 100);
  expect_lost("the RTS");
}

TEST_F(ShmP2pHostileTest, CreditForMoreThanWasSent) {
  write({.kind = FrameKind::kCredit, .size = 1});
  expect_lost("the credit");
}

TEST_F(ShmP2pHostileTest, InvalidErrorCode) {
  write({.kind = FrameKind::kNack, .code = 0, .id = 5});
  expect_lost("the NACK");
}

TEST_F(ShmP2pHostileTest, MoreThanTheWindow) {
  // The victim does not receive the messages.
  const absl::Time late = timeout();
  uint64_t sent = 0;
  while (sent < 2 * kEagerWindow && Clock::system().now() < late) {
    if (!to_victim_->fits(kRingPieceBytes)) {
      // The victim reads its rings only while an operation needs that.
      std::string data(1, ' ');
      if (!victim_->receive(1, 99, span(data), in(absl::Milliseconds(1))).result().ok() &&
          sent > kEagerWindow)
        break;
      continue;
    }
    write({.kind = FrameKind::kEager, .size = kRingPieceBytes});
    sent += kRingPieceBytes;
  }
  EXPECT_GE(sent, kEagerWindow * 9 / 10);
  expect_lost("the message over the window");
}

TEST_F(ShmP2pHostileTest, ReportsReadingUnwrittenRecords) {
  auto* const head = reinterpret_cast<P2pRing::Head*>(ShmCarrier::ring_memory(*memory_, 0, 1));
  head->consumed.store(1000);
  std::string data(4096, ' ');
  absl::Status status;
  for (std::size_t i = 0; i < 2 * kRingCells && status.ok(); ++i)
    status = victim_->send(1, 0, span(data), timeout()).result();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// The test reads nothing for a while, so that messages to it wait for room.
TEST_F(ShmP2pHostileTest, CancelOfAPartlyWrittenMessageIsSent) {
  std::string large(std::size_t{64} << 20, ' ');
  const Future<void> send = victim_->send(1, 0, span(large), timeout());
  const RingRecord rts_record = read();
  ASSERT_EQ(rts_record.kind, FrameKind::kRts);
  write({.kind = FrameKind::kCts, .id = rts_record.id});
  memory_->signal();
  const absl::Time late = timeout();
  while (!from_victim_->is_full() && Clock::system().now() < late) std::this_thread::yield();
  ASSERT_TRUE(from_victim_->is_full());
  send.cancel();
  RingRecord last = read();
  while (last.kind == FrameKind::kData) last = read();
  EXPECT_EQ(last.kind, FrameKind::kCancel);
  EXPECT_EQ(last.id, rts_record.id);
}

TEST_F(ShmP2pHostileTest, CancelledMessagesThatWaitForRoomReleaseTheWindow) {
  std::string data(1, ' '), longer(kEager, ' ');
  int sent = 0;
  while (victim_->send(1, 0, span(data), timeout()).done()) ++sent;
  for (int i = 0; i < 1000; ++i) victim_->send(1, 0, span(longer), timeout()).cancel();
  // Also short messages: the long ones may leave a part of the window that is too small only for them.
  for (int i = 0; i < 5000; ++i) victim_->send(1, 0, span(data), timeout()).cancel();
  const Future<void> last = victim_->send(1, 9, span(data), timeout());
  for (int i = 0; i < sent + 1; ++i) EXPECT_EQ(read().kind, FrameKind::kEager);
  const RingRecord record = read();
  EXPECT_EQ(record.kind, FrameKind::kEager);
  EXPECT_EQ(record.tag, 9);
  EXPECT_TRUE(last.result().ok());
}

// Answers to unknown messages are harmless.
TEST_F(ShmP2pHostileTest, AnswersToUnknownMessagesAreIgnored) {
  for (const FrameKind kind : {FrameKind::kCts, FrameKind::kNack, FrameKind::kCancel})
    write({.kind = kind, .code = 1, .id = 12345});
  write({.kind = FrameKind::kEager, .tag = 4, .size = 3});
  std::string data(3, ' ');
  EXPECT_EQ(victim_->receive(1, 4, span(data), timeout()).result().value_or(-1), 1);
  EXPECT_EQ(data, "ppp");
}

}  // namespace
}  // namespace gradwire::collectives::cpu
