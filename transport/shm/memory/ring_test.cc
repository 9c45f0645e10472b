#include <optional>
#include <string>
#include <thread>

#include "gradwire/transport/shm/memory/ring_consumer.h"
#include "gradwire/transport/shm/memory/ring_producer.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

constexpr std::size_t kRingBytes = kMinRingBytes;

class Ring : public ::testing::Test {
 protected:
  void SetUp() override {
    Descriptor descriptor;
    auto own = SharedMemory::create(ring_memory_bytes(kRingBytes), false, descriptor);
    ASSERT_TRUE(own.ok()) << own.status();
    auto other = SharedMemory::adopt(descriptor, ring_memory_bytes(kRingBytes), false);
    ASSERT_TRUE(other.ok()) << other.status();
    auto raw = SharedMemory::adopt(descriptor, ring_memory_bytes(kRingBytes), false);
    ASSERT_TRUE(raw.ok()) << raw.status();
    raw_ = *std::move(raw);
    producer_.emplace(*std::move(own), kRingBytes);
    consumer_.emplace(*std::move(other), kRingBytes);
  }

  void put(const std::string& payload, uint32_t buffers = 0) {
    producer_->begin(payload.size());
    // Appended in two parts, as messages are.
    producer_->append(payload.data(), payload.size() / 3);
    producer_->append(payload.data() + payload.size() / 3, payload.size() - payload.size() / 3);
    producer_->publish(RecordKind::kData, buffers);
  }

  // Returns the payload of the next record, or "none".
  std::string take() {
    const RecordWord record = RecordWord::decode(consumer_->peek());
    if (record.kind == 0) return "none";
    std::string payload(record.length, '\0');
    consumer_->copy_out(0, payload.data(), payload.size());
    consumer_->release(record.length);
    return payload;
  }

  static std::string payload_of(std::size_t bytes, int seed) {
    std::string payload(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 7 + seed * 13 + 1);
    return payload;
  }

  SharedMemory raw_;
  std::optional<RingProducer> producer_;
  std::optional<RingConsumer> consumer_;
};

TEST_F(Ring, RecordsOfAllLengthsArriveUnchangedAlsoWhenTheyWrap) {
  for (int seed = 0; seed < 3; ++seed) {
    for (std::size_t bytes = 0; bytes <= producer_->max_payload(); ++bytes) {
      ASSERT_TRUE(producer_->has_room(bytes)) << bytes;
      put(payload_of(bytes, seed));
      ASSERT_EQ(take(), payload_of(bytes, seed)) << bytes;
    }
  }
  EXPECT_EQ(take(), "none");
}

TEST_F(Ring, AWordKeepsItsParts) {
  put("x", RecordWord::kMaxBuffers);
  const RecordWord record = RecordWord::decode(consumer_->peek());
  EXPECT_EQ(record.kind, static_cast<uint8_t>(RecordKind::kData));
  EXPECT_EQ(record.buffers, RecordWord::kMaxBuffers);
  EXPECT_EQ(record.length, 1);
}

TEST_F(Ring, OldBytesAreNotTakenForARecord) {
  // Each line of this payload could be taken for a record.
  const std::string payload(producer_->max_payload(), '\x01');
  for (int round = 0; round < 9; ++round) {
    ASSERT_TRUE(producer_->has_room(payload.size()));
    put(payload);
    EXPECT_EQ(take(), payload);
    EXPECT_EQ(take(), "none");
  }
}

TEST_F(Ring, AFullRingTakesNoMoreUntilItIsRead) {
  const std::size_t bytes = producer_->max_payload();
  int records = 0;
  while (producer_->has_room(bytes)) {
    put(payload_of(bytes, records));
    ++records;
  }
  EXPECT_EQ(records, 4);
  for (int i = 0; i < records; ++i) EXPECT_EQ(take(), payload_of(bytes, i));
  EXPECT_TRUE(producer_->has_room(bytes));
  EXPECT_FALSE(producer_->broken());
}

TEST_F(Ring, ConsumerRingsAfterItMadeRequestedRoom) {
  const std::size_t bytes = producer_->max_payload();
  while (producer_->has_room(bytes)) put(payload_of(bytes, 1));
  EXPECT_FALSE(consumer_->release(RecordWord::decode(consumer_->peek()).length));
  producer_->ask_for_room();
  EXPECT_TRUE(consumer_->release(RecordWord::decode(consumer_->peek()).length));
  EXPECT_FALSE(consumer_->release(RecordWord::decode(consumer_->peek()).length));
}

TEST_F(Ring, AnArmedConsumerIsRungOnce) {
  put("first");
  EXPECT_TRUE(producer_->take_armed());
  put("second");
  EXPECT_FALSE(producer_->take_armed());
  consumer_->arm();
  put("third");
  EXPECT_TRUE(producer_->take_armed());
  consumer_->arm();
  consumer_->disarm();
  put("fourth");
  EXPECT_FALSE(producer_->take_armed());
}

TEST_F(Ring, ImpossibleTailBreaksTheProducer) {
  const uint64_t lines = kRingBytes / kLineBytes;
  // A short record comes first, so that the ring is not filled completely and the tail `lines` is beyond the
  // written lines.
  for (uint64_t tail : {lines, lines + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    SetUp();
    const std::size_t bytes = producer_->max_payload();
    put("short");
    while (producer_->has_room(bytes)) put(payload_of(bytes, 1));
    EXPECT_FALSE(producer_->broken());
    shared_word<uint64_t>(raw_.data() + kTailOffset).store(tail);
    EXPECT_FALSE(producer_->has_room(bytes));
    EXPECT_TRUE(producer_->broken()) << tail;
  }
}

TEST_F(Ring, DecreasingTailBreaksTheProducer) {
  const std::size_t bytes = producer_->max_payload();
  while (producer_->has_room(bytes)) put(payload_of(bytes, 1));
  for (int i = 0; i < 4; ++i) take();
  while (producer_->has_room(bytes)) put(payload_of(bytes, 1));
  EXPECT_FALSE(producer_->broken());
  shared_word<uint64_t>(raw_.data() + kTailOffset).store(1);
  EXPECT_FALSE(producer_->has_room(bytes));
  EXPECT_TRUE(producer_->broken());
}

TEST_F(Ring, ManyRecordsPassBetweenTwoThreads) {
  constexpr int kRecords = 200'000;
  std::thread writer([this] {
    for (int i = 0; i < kRecords; ++i) {
      const std::string payload = payload_of(i % 200, i);
      while (!producer_->has_room(payload.size())) std::this_thread::yield();
      put(payload);
    }
  });
  for (int i = 0; i < kRecords; ++i) {
    while (consumer_->peek() == 0) std::this_thread::yield();
    ASSERT_EQ(take(), payload_of(i % 200, i)) << i;
  }
  writer.join();
}

TEST(SharedMemoryTest, OnlySealedMemoryOfTheRightSizeIsAdopted) {
  Descriptor descriptor;
  auto memory = SharedMemory::create(8'192, false, descriptor);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(SharedMemory::adopt(descriptor, 4'096, false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::adopt(descriptor, 12'288, false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SharedMemory::adopt(Descriptor(), 8'192, false).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SharedMemory::adopt(descriptor, 8'192, false).ok());
}

TEST(SharedMemoryTest, BytesAreSharedWithHugePagesToo) {
  for (std::size_t bytes : {std::size_t{4'096}, (std::size_t{2} << 20) + 4'096, std::size_t{5} << 20}) {
    Descriptor descriptor;
    auto one = SharedMemory::create(bytes, true, descriptor);
    ASSERT_TRUE(one.ok()) << one.status();
    auto other = SharedMemory::adopt(descriptor, bytes, true);
    ASSERT_TRUE(other.ok()) << other.status();
    one->data()[0] = 1;
    one->data()[bytes - 1] = 2;
    EXPECT_EQ(other->data()[0], 1);
    EXPECT_EQ(other->data()[bytes - 1], 2);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(one->data()) % (std::size_t{2} << 20), 0);
  }
}

}  // namespace
}  // namespace gradwire::transport
