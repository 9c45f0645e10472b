#include "gradwire/base/flight/record_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gradwire {
namespace {

using Ring = RecordRing<3>;

TEST(RecordRing, CapacityIsRoundedUpToAPowerOfTwo) {
  EXPECT_EQ(Ring(0).capacity(), 1u);
  EXPECT_EQ(Ring(4).capacity(), 4u);
  EXPECT_EQ(Ring(5).capacity(), 8u);
}

TEST(RecordRing, RecordIsReadAsItWasWrittenAndChanged) {
  Ring ring(4);
  EXPECT_EQ(ring.added(), 0u);
  const uint64_t number = ring.add(7, {1, 2, ~uint64_t{0}});
  EXPECT_TRUE(ring.set(number, 1, 5));
  EXPECT_EQ(ring.get(number, 1), 5u);
  uint32_t head = 0;
  Ring::Words words{};
  ASSERT_TRUE(ring.read(number, head, words));
  EXPECT_EQ(head, 7u);
  EXPECT_EQ(words, (Ring::Words{1, 5, ~uint64_t{0}}));
  // The next number has not been added.
  EXPECT_FALSE(ring.read(number + 1, head, words));
}

TEST(RecordRing, OverflowKeepsTheNewestAndRefusesChangesOfOthers) {
  Ring ring(4);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(ring.add(0, {i, 0, 0}), i);
  EXPECT_EQ(ring.added(), 10u);
  EXPECT_EQ(ring.first(), 6u);
  uint32_t head = 0;
  Ring::Words words{};
  EXPECT_FALSE(ring.read(5, head, words));
  // The slot of record 5 now holds record 9.
  EXPECT_FALSE(ring.set(5, 0, 77));
  EXPECT_FALSE(ring.change(5, [](auto& words) { words[0] = 77; }));
  EXPECT_TRUE(ring.change(9, [](auto& words) { words[1] = 77; }));
  EXPECT_EQ(ring.get(9, 1), 77u);
  EXPECT_EQ(ring.get(5, 0), 0u);
  for (uint64_t i = 6; i < 10; ++i) {
    ASSERT_TRUE(ring.read(i, head, words));
    EXPECT_EQ(words[0], i);
  }
}

// Each word of a record is computed from its first word, so a mixture of two records is noticed.
TEST(RecordRing, ReaderSeesOnlyWholeRecordsWhileOthersWrite) {
  Ring ring(16);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> seen{0};
  std::vector<std::thread> threads;
  for (uint64_t writer = 1; writer <= 3; ++writer) {
    threads.emplace_back([&ring, writer] {
      for (uint64_t i = 0; i < 20'000; ++i) {
        const uint64_t value = writer << 32 | i;
        const uint64_t number = ring.add(static_cast<uint32_t>(i), {value, ~value, 0});
        ring.set(number, 2, value * 3);
      }
    });
  }
  std::thread reader([&] {
    do {
      const uint64_t next = ring.added();
      for (uint64_t number = ring.first(); number < next; ++number) {
        uint32_t head = 0;
        Ring::Words words{};
        if (!ring.read(number, head, words)) continue;
        ASSERT_EQ(words[1], ~words[0]);
        ASSERT_EQ(head, static_cast<uint32_t>(words[0]));
        seen.fetch_add(1);
      }
    } while (!stop.load());
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  reader.join();
  EXPECT_GT(seen.load(), 0u);
  EXPECT_EQ(ring.added(), 60'000u);
}

}  // namespace
}  // namespace gradwire
