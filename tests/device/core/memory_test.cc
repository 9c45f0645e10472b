#include "gradwire/tests/device/core/memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <vector>

#include "gradwire/tests/device/core/accelerator.h"
#include "gradwire/tests/device/core/extents.h"
#include "gradwire/tests/device/core/host_memory.h"
#include "gradwire/tests/device/core/poison.h"

namespace gradwire::lag {
namespace {

constexpr size_t kSize = 1000;

class MemoryTest : public ::testing::Test {
 protected:
  Block* allocate(Stream& stream, size_t bytes = kSize) {
    const absl::StatusOr<Block*> block = memory_.allocate(bytes, stream);
    EXPECT_TRUE(block.ok()) << block.status();
    return *block;
  }

  // A kernel that fills the block with a byte.
  static void fill(Stream& stream, const Block* block, int byte) {
    ASSERT_TRUE(stream.launch([data = block->data(), byte] { std::memset(data, byte, kSize); }).ok());
  }

  // A kernel that reads the first byte of the block.
  static void read(Stream& stream, const Block* block, int* to) {
    ASSERT_TRUE(stream.launch([data = block->data(), to] { *to = *static_cast<unsigned char*>(data); }).ok());
  }

  Accelerator accelerator_{Options{.devices = 1, .memory = 64 << 20, .capacity = 8 << 20}};
  Memory& memory_ = accelerator_.memory(0);
  Stream& a_ = accelerator_.pool_stream(0);
  Stream& b_ = accelerator_.pool_stream(0);
};

TEST_F(MemoryTest, IsPoisonUntilItIsWritten) {
  Block* block = allocate(a_);
  ASSERT_TRUE(a_.synchronize().ok());
  EXPECT_TRUE(is_poison(block->data(), kSize));
  fill(a_, block, 1);
  ASSERT_TRUE(a_.synchronize().ok());
  EXPECT_FALSE(is_poison(block->data(), kSize));
  const void* data = block->data();
  memory_.free(block);
  ASSERT_TRUE(a_.synchronize().ok());
  EXPECT_TRUE(is_poison(data, kSize));
}

TEST_F(MemoryTest, FreedBlockIsUsedAgainAtOnceOnItsStream) {
  Block* block = allocate(a_);
  int before = 0;
  a_.hold();
  fill(a_, block, 5);
  read(a_, block, &before);
  const void* data = block->data();
  memory_.free(block);
  // The stream has not even written the block yet.
  Block* again = allocate(a_, 700);
  EXPECT_EQ(again->data(), data);
  EXPECT_EQ(again->size(), 700);
  int after = 0;
  fill(a_, again, 6);
  read(a_, again, &after);
  a_.release();
  ASSERT_TRUE(a_.synchronize().ok());
  // The order of the stream keeps the two users apart.
  EXPECT_EQ(before, 5);
  EXPECT_EQ(after, 6);
  EXPECT_EQ(memory_.counts().reuses, 1);
}

TEST_F(MemoryTest, LastFreedBlockIsUsedFirst) {
  Block* first = allocate(a_);
  Block* second = allocate(a_);
  const void* last = second->data();
  memory_.free(first);
  memory_.free(second);
  EXPECT_EQ(allocate(a_)->data(), last);
}

TEST_F(MemoryTest, OtherStreamDoesNotGetTheBlock) {
  Block* block = allocate(a_);
  const void* data = block->data();
  memory_.free(block);
  EXPECT_NE(allocate(b_)->data(), data);
}

TEST_F(MemoryTest, RecordedStreamMustPassTheFreeBeforeReuse) {
  Block* block = allocate(a_);
  fill(a_, block, 5);
  ASSERT_TRUE(b_.wait(a_.end()).ok());
  b_.hold();
  int seen = 0;
  read(b_, block, &seen);
  memory_.record_stream(block, b_);
  const void* data = block->data();
  memory_.free(block);
  EXPECT_EQ(memory_.counts().pending, 1);
  Block* other = allocate(a_);
  EXPECT_NE(other->data(), data);
  fill(a_, other, 6);
  b_.release();
  ASSERT_TRUE(b_.synchronize().ok());
  EXPECT_EQ(seen, 5);
  EXPECT_EQ(memory_.counts().pending, 0);
  EXPECT_EQ(allocate(a_)->data(), data);
}

TEST_F(MemoryTest, MissingRecordReadsPoison) {
  Block* block = allocate(a_);
  fill(a_, block, 5);
  ASSERT_TRUE(b_.wait(a_.end()).ok());
  b_.hold();
  int seen = 0;
  read(b_, block, &seen);
  memory_.free(block);
  ASSERT_TRUE(a_.synchronize().ok());
  b_.release();
  ASSERT_TRUE(b_.synchronize().ok());
  EXPECT_EQ(seen, kPoison & 0xff);
}

TEST_F(MemoryTest, MissingRecordReadsTheNextTensor) {
  Block* block = allocate(a_);
  fill(a_, block, 5);
  ASSERT_TRUE(b_.wait(a_.end()).ok());
  b_.hold();
  int seen = 0;
  read(b_, block, &seen);
  memory_.free(block);
  fill(a_, allocate(a_), 6);
  ASSERT_TRUE(a_.synchronize().ok());
  b_.release();
  ASSERT_TRUE(b_.synchronize().ok());
  EXPECT_EQ(seen, 6);
}

TEST_F(MemoryTest, MissingWaitAfterAllocationLosesTheData) {
  a_.hold();
  Block* block = allocate(a_);
  fill(b_, block, 5);
  ASSERT_TRUE(b_.synchronize().ok());
  a_.release();
  ASSERT_TRUE(a_.synchronize().ok());
  EXPECT_TRUE(is_poison(block->data(), kSize));
}

TEST_F(MemoryTest, FullMemoryIsAnErrorUntilSomethingIsFreed) {
  Block* large = allocate(a_, 6 << 20);
  const absl::Status status = memory_.allocate(4 << 20, a_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(memory_.counts().out_of_memory, 1);
  memory_.free(large);
  // Another size, so the cached block must be given up first.
  Block* next = allocate(b_, 7 << 20);
  EXPECT_EQ(next->size(), size_t{7} << 20);
  memory_.set_capacity(16 << 20);
  EXPECT_TRUE(memory_.allocate(8 << 20, a_).ok());
}

TEST_F(MemoryTest, FullMemoryWaitsForPendingBlocks) {
  Block* large = allocate(a_, 6 << 20);
  b_.hold();
  memory_.record_stream(large, b_);
  memory_.free(large);
  std::thread releasing([this] {
    while (accelerator_.counts().host_blocked == 0) std::this_thread::yield();
    b_.release();
  });
  EXPECT_TRUE(memory_.allocate(4 << 20, a_).ok());
  releasing.join();
  EXPECT_EQ(accelerator_.shared().host_waits().back().call, "allocate");
}

TEST_F(MemoryTest, FindsBlocksByAddress) {
  Block* block = allocate(a_);
  auto* data = static_cast<std::byte*>(block->data());
  EXPECT_EQ(memory_.find(data + 10), block);
  EXPECT_EQ(memory_.find(data + (1 << 20)), nullptr);
  EXPECT_EQ(memory_.find(&block), nullptr);
  EXPECT_EQ(accelerator_.device_of(data), 0);
  EXPECT_EQ(accelerator_.device_of(&block), -1);
  memory_.free(block);
  EXPECT_EQ(memory_.find(data), nullptr);
}

TEST_F(MemoryTest, IsTheContentOfItsFile) {
  Block* block = allocate(a_);
  fill(a_, block, 9);
  ASSERT_TRUE(a_.synchronize().ok());
  const auto offset = static_cast<std::byte*>(block->data()) - memory_.base();
  void* mapped = ::mmap(nullptr, memory_.size(), PROT_READ, MAP_SHARED, memory_.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(mapped) + offset, block->data(), kSize), 0);
  ::munmap(mapped, memory_.size());
}

TEST_F(MemoryTest, ManyThreadsNeverShareABlock) {
  std::vector<std::thread> threads;
  for (int t = 1; t <= 4; t++) {
    threads.emplace_back([this, t] {
      Stream& stream = accelerator_.pool_stream(0);
      Stream& reader = accelerator_.pool_stream(0);
      std::vector<int> seen(100, 0);
      for (int& each : seen) {
        Block* block = allocate(stream);
        fill(stream, block, t);
        ASSERT_TRUE(reader.wait(stream.end()).ok());
        read(reader, block, &each);
        memory_.record_stream(block, reader);
        memory_.free(block);
      }
      ASSERT_TRUE(reader.synchronize().ok());
      for (const int each : seen) ASSERT_EQ(each, t);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(accelerator_.synchronize(0).ok());
  EXPECT_EQ(memory_.counts().blocks, 0);
  EXPECT_EQ(memory_.counts().pending, 0);
}

TEST(Extents, JoinsNeighbours) {
  Extents extents(100);
  EXPECT_EQ(extents.take(40), 0);
  EXPECT_EQ(extents.take(30), 40);
  EXPECT_EQ(extents.take(30), 70);
  EXPECT_EQ(extents.take(1), std::nullopt);
  extents.give(0, 40);
  extents.give(70, 30);
  EXPECT_EQ(extents.take(60), std::nullopt);
  extents.give(40, 30);
  EXPECT_EQ(extents.take(100), 0);
}

TEST(HostMemory, BlockIsUsedAgainAfterItsStreams) {
  Accelerator accelerator(Options{.devices = 1, .memory = 64 << 20});
  HostMemory& memory = accelerator.host_memory();
  Stream& stream = accelerator.default_stream(0);
  auto* data = static_cast<unsigned char*>(memory.allocate(kSize));
  EXPECT_TRUE(memory.contains(data + 10));
  EXPECT_FALSE(memory.contains(&data));
  EXPECT_TRUE(is_poison(data, kSize));
  std::memset(data, 5, kSize);
  stream.hold();
  int seen = 0;
  ASSERT_TRUE(stream.launch([data, &seen] { seen = data[0]; }).ok());
  EXPECT_TRUE(memory.record(data + 1, stream));
  EXPECT_FALSE(memory.record(&data, stream));
  memory.free(data);
  EXPECT_FALSE(memory.contains(data));
  EXPECT_EQ(memory.counts().pending, 1);
  void* other = memory.allocate(kSize);
  EXPECT_NE(other, data);
  stream.release();
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(seen, 5);
  void* again = memory.allocate(kSize);
  EXPECT_EQ(again, data);
  EXPECT_TRUE(is_poison(again, kSize));
  EXPECT_EQ(memory.counts().reuses, 1);
  memory.free(other);
  memory.free(again);
  EXPECT_EQ(memory.counts().blocks, 0);
  memory.release_cached();
}

TEST(HostMemory, MissingRecordReadsPoison) {
  Accelerator accelerator(Options{.devices = 1, .memory = 64 << 20});
  HostMemory& memory = accelerator.host_memory();
  Stream& stream = accelerator.default_stream(0);
  auto* data = static_cast<unsigned char*>(memory.allocate(kSize));
  std::memset(data, 5, kSize);
  stream.hold();
  int seen = 0;
  ASSERT_TRUE(stream.launch([data, &seen] { seen = data[0]; }).ok());
  memory.free(data);
  stream.release();
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(seen, kPoison & 0xff);
}

TEST(Poison, IsNotANumberAndOutOfRange) {
  float single = 0;
  double twice = 0;
  int64_t integer = 0;
  poison(&single, sizeof(single));
  poison(&twice, sizeof(twice));
  poison(&integer, sizeof(integer));
  EXPECT_NE(single, single);
  EXPECT_NE(twice, twice);
  EXPECT_GT(integer, int64_t{1} << 60);
  unsigned char odd[7];
  poison(odd, sizeof(odd));
  EXPECT_TRUE(is_poison(odd, sizeof(odd)));
  odd[6] = 0;
  EXPECT_FALSE(is_poison(odd, sizeof(odd)));
}

}  // namespace
}  // namespace gradwire::lag
