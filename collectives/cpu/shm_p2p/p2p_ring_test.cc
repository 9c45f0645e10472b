#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kData = 4 * kRingPieceBytes;

class P2pRingTest : public ::testing::Test {
 protected:
  struct alignas(128) Line {
    char bytes[128];
  };
  char* memory() { return memory_[0].bytes; }
  P2pRing::Head& head() { return *reinterpret_cast<P2pRing::Head*>(memory()); }
  std::atomic<uint64_t>& word(uint64_t cell, std::size_t index) {
    return reinterpret_cast<P2pRing::Cell*>(memory() + sizeof(P2pRing::Head))[cell % kRingCells].words[index];
  }
  static std::string bytes(std::size_t size, uint64_t seed) {
    std::string out(size, '\0');
    for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 7 + seed * 13) >> 3);
    return out;
  }
  void write(const std::string& payload, FrameKind kind = FrameKind::kEager) {
    writer_.write({.kind = kind, .tag = 3, .size = payload.size(), .id = 5, .payload = payload.data()});
  }

  std::unique_ptr<Line[]> memory_ = std::make_unique<Line[]>(P2pRing::bytes(kData) / sizeof(Line) + 1);
  P2pRingWriter writer_{P2pRing(memory(), kData)};
  P2pRingReader reader_{P2pRing(memory(), kData)};
};

TEST_F(P2pRingTest, RecordsComeWholeAndInOrder) {
  // The writer writes ahead as far as there is room.
  uint64_t written = 0;
  const auto size_of = [](uint64_t i) { return i * i * 37 % (kRingPieceBytes + 1); };
  for (uint64_t i = 0; i < 3000; ++i) {
    while (written < 3000 && writer_.fits(size_of(written))) {
      write(bytes(size_of(written), written), written % 2 == 0 ? FrameKind::kEager : FrameKind::kData);
      ++written;
    }
    ASSERT_GT(written, i);
    ASSERT_TRUE(reader_.has_record());
    const auto record = reader_.peek();
    ASSERT_TRUE(record.ok()) << record.status();
    ASSERT_EQ(std::string(record->payload, record->size), bytes(size_of(i), i));
    EXPECT_EQ(record->tag, 3);
    EXPECT_EQ(record->id, i % 2 == 0 && size_of(i) <= kRingInlineBytes ? 0u : 5u);
    reader_.release(*record);
  }
  EXPECT_FALSE(reader_.has_record());
  EXPECT_FALSE(writer_.corrupt());
}

TEST_F(P2pRingTest, RecordsWithoutPayloadComeAfterShortMessagesInTheSameCells) {
  for (uint64_t i = 0; i < 4 * kRingCells; ++i) {
    const bool is_message = i / kRingCells % 2 == 0;
    const std::string payload(kRingInlineBytes, static_cast<char>(0x80 + i % 100));
    ASSERT_TRUE(writer_.fits(0));
    if (is_message) {
      write(payload);
    } else {
      writer_.write({.kind = FrameKind::kCredit, .size = i});
    }
    const auto record = reader_.peek();
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->size, is_message ? kRingInlineBytes : i);
    reader_.release(*record);
  }
}

TEST_F(P2pRingTest, HasRoomForEveryCellAndNoMore) {
  for (std::size_t i = 0; i < kRingCells; ++i) {
    ASSERT_TRUE(writer_.fits(8));
    write("12345678");
  }
  EXPECT_FALSE(writer_.fits(0));
  EXPECT_TRUE(writer_.want_room(true));
  EXPECT_FALSE(writer_.want_room(true));
  bool wakes = false;
  for (int i = 0; i < 64 && !wakes; ++i) wakes = reader_.release(*reader_.peek());
  EXPECT_TRUE(wakes);
  EXPECT_TRUE(writer_.fits(0));
}

TEST_F(P2pRingTest, RefusesMalformedRecords) {
  write("12345678");
  const uint64_t good = word(0, 1).load();
  for (const uint64_t kind : {0u, 9u, 255u}) {
    word(0, 1).store((good & ~uint64_t{255}) | kind);
    EXPECT_EQ(reader_.peek().status().code(), absl::StatusCode::kInvalidArgument) << kind;
  }
  // Payloads that are too long, beyond the end, or not allowed for the kind.
  for (const uint64_t length : {uint64_t{kRingPieceBytes} + 1, uint64_t{UINT32_MAX}}) {
    word(0, 1).store((good & UINT32_MAX) | length << 32);
    EXPECT_FALSE(reader_.peek().ok()) << length;
  }
  word(0, 1).store((good & UINT32_MAX) | uint64_t{100} << 32);
  for (const uint64_t position : {uint64_t{kData} - 99, uint64_t{kData}, UINT64_MAX}) {
    word(0, 5).store(position);
    EXPECT_FALSE(reader_.peek().ok()) << position;
  }
  word(0, 5).store(kData - 100);
  EXPECT_TRUE(reader_.peek().ok());
  word(0, 1).store(static_cast<uint64_t>(FrameKind::kCts) | uint64_t{1} << 32);
  EXPECT_FALSE(reader_.peek().ok());
}

TEST_F(P2pRingTest, ReaderThatReportsTooMuchCorruptsTheRing) {
  for (std::size_t i = 0; i < kRingCells; ++i) write("");
  for (const uint64_t consumed : {uint64_t{kRingCells} + 1, UINT64_MAX}) {
    head().consumed.store(consumed);
    EXPECT_FALSE(writer_.fits(0));
    EXPECT_TRUE(writer_.corrupt());
  }
}

}  // namespace
}  // namespace gradwire::collectives::cpu
