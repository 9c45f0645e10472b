#include "gradwire/transport/buffer_pool.h"

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

bool is_aligned(const Buffer& buffer) { return reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0; }

TEST(BufferPool, EverySizeIsAlignedAndWritable) {
  BufferPool pool;
  std::vector<std::size_t> sizes;
  for (std::size_t size = 1; size < 700; ++size) sizes.push_back(size);
  for (int power = 10; power <= 24; ++power) {
    for (int around : {-1, 0, 1, 65}) sizes.push_back((std::size_t{1} << power) + around);
  }
  for (std::size_t size : sizes) {
    auto buffer = pool.allocate(size);
    ASSERT_TRUE(buffer.ok()) << size;
    ASSERT_EQ(buffer->size(), size);
    ASSERT_TRUE(is_aligned(*buffer)) << size;
    ASSERT_EQ(buffer->sharing(), Buffer::Sharing::kOwned);
    std::memset(buffer->data(), 1, size);
  }
}

TEST(BufferPool, SizeZeroNeedsNoMemory) {
  BufferPool pool;
  auto buffer = pool.allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(buffer->size(), 0);
}

TEST(BufferPool, ReleasedMemoryComesBack) {
  BufferPool pool;
  for (std::size_t size : {1'500, 5'000, 300'000, 5'000'000}) {
    auto first = pool.allocate(size);
    ASSERT_TRUE(first.ok());
    void* memory = first->data();
    std::size_t idle = pool.idle_bytes();
    *first = Buffer();
    EXPECT_GE(pool.idle_bytes(), idle + size);
    auto second = pool.allocate(size - 3);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(second->data(), memory) << size;
  }
}

TEST(BufferPool, MemoryInUseIsNeverAllocatedTwice) {
  BufferPool pool;
  auto first = pool.allocate(2'000);
  auto second = pool.allocate(2'000);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->data(), second->data());
  Buffer copy = *first;
  *first = Buffer();
  auto third = pool.allocate(2'000);
  ASSERT_TRUE(third.ok());
  EXPECT_NE(third->data(), copy.data());
}

TEST(BufferPool, KeepsNoMoreThanItsBound) {
  BufferPool pool(BufferPoolOptions{.max_idle_bytes = 1'000'000});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 100; ++i) buffers.push_back(*pool.allocate(50'000));
  buffers.clear();
  EXPECT_LE(pool.idle_bytes(), 1'000'000);
  EXPECT_GT(pool.idle_bytes(), 800'000);
  buffers.push_back(*pool.allocate(3'000'000));
  buffers.clear();
  EXPECT_LE(pool.idle_bytes(), 1'000'000);
}

TEST(BufferPool, BlocksInUseReplaceKeptBlocksOfOtherSizes) {
  BufferPool pool(BufferPoolOptions{.max_idle_bytes = 1'000'000});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(*pool.allocate(48'000));
  buffers.clear();
  auto large = pool.allocate(700'000);
  ASSERT_TRUE(large.ok());
  void* memory = large->data();
  *large = Buffer();
  EXPECT_LE(pool.idle_bytes(), 1'000'000);
  EXPECT_EQ(pool.allocate(700'000)->data(), memory);
}

TEST(BufferPool, SmallBuffersAreNotKept) {
  BufferPool pool;
  for (std::size_t size = 1; size < BufferPool::kPooledFrom; size += 50) {
    auto buffer = pool.allocate(size);
    ASSERT_TRUE(buffer.ok());
    std::memset(buffer->data(), 1, size);
  }
  EXPECT_EQ(pool.idle_bytes(), 0);
}

TEST(BufferPool, TrimFreesBlocksThatWereIdleSinceTheLastTrim) {
  BufferPool pool(BufferPoolOptions{.idle_time = absl::Seconds(5)});
  absl::Time now = absl::UnixEpoch();
  for (std::size_t size : {5'000, 3'000'000}) *pool.allocate(size);
  const std::size_t both = pool.idle_bytes();
  pool.trim(now);
  EXPECT_EQ(pool.idle_bytes(), both);
  // This call is too early to begin another period.
  pool.trim(now + absl::Seconds(1));
  EXPECT_EQ(pool.idle_bytes(), both);
  void* used = pool.allocate(5'000)->data();
  now += absl::Seconds(5);
  pool.trim(now);
  EXPECT_GE(pool.idle_bytes(), 5'000);
  EXPECT_LT(pool.idle_bytes(), 100'000);
  EXPECT_EQ(pool.allocate(5'000)->data(), used);
  for (int i = 0; i < 2; ++i) {
    now += absl::Seconds(5);
    pool.trim(now);
  }
  EXPECT_EQ(pool.idle_bytes(), 0);
}

TEST(BufferPool, BuffersOutliveThePool) {
  Buffer small, large;
  {
    BufferPool pool;
    small = *pool.allocate(1'000);
    large = *pool.allocate(10'000'000);
    Buffer kept = *pool.allocate(2'000);
  }
  std::memset(small.data(), 1, small.size());
  std::memset(large.data(), 1, large.size());
}

TEST(BufferPool, ImpossibleSizeIsResourceExhausted) {
  BufferPool pool;
  for (std::size_t size :
       {~std::size_t{0}, std::size_t{1} << 63, std::size_t{1} << 60, std::size_t{1} << 47}) {
    EXPECT_EQ(pool.allocate(size).status().code(), absl::StatusCode::kResourceExhausted) << size;
  }
  EXPECT_TRUE(pool.allocate(100).ok());
}

TEST(BufferPool, ManyThreadsAllocateAndReleaseEachOthersBuffers) {
  constexpr int kThreads = 6;
  BufferPool pool(BufferPoolOptions{.max_idle_bytes = 4'000'000});
  Mutex mutex;
  std::vector<std::pair<Buffer, char>> shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 2'000; ++i) {
        auto buffer = pool.allocate(random() % 3'000 + (i % 50 == 0 ? 300'000 : 1));
        ASSERT_TRUE(buffer.ok());
        char mark = static_cast<char>(random());
        std::memset(buffer->data(), mark, buffer->size());
        std::pair<Buffer, char> other;
        {
          MutexLock lock(mutex);
          shared.emplace_back(*std::move(buffer), mark);
          std::swap(shared[random() % shared.size()], shared.back());
          if (shared.size() < 20) continue;
          other = std::move(shared.back());
          shared.pop_back();
        }
        const char* bytes = static_cast<const char*>(other.first.data());
        ASSERT_EQ(bytes[0], other.second);
        ASSERT_EQ(bytes[other.first.size() - 1], other.second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  shared.clear();
  EXPECT_LE(pool.idle_bytes(), 4'000'000);
}

}  // namespace
}  // namespace gradwire::transport
