#include "gradwire/base/metrics/counter.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "gradwire/base/metrics/histogram.h"
#include "gradwire/base/metrics/thread_slot.h"
#include "gtest/gtest.h"

namespace gradwire::metrics {
namespace {

TEST(Counter, ThreadsTogetherLoseNothing) {
  // More threads than cells: some share one. They begin together, so that they really share it.
  constexpr int kThreads = 3 * kSlots;
  constexpr int kAdds = 2'000;
  Counter counter;
  Histogram histogram;
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      counter.add(0);  // Takes the cell.
      ready.fetch_add(1);
      while (ready.load() < kThreads) std::this_thread::yield();
      for (int n = 0; n < kAdds; ++n) {
        counter.add(3);
        histogram.record_ns(1'500);
      }
    });
  }
  uint64_t before = 0;
  while (ready.load() < kThreads) std::this_thread::yield();
  for (int n = 0; n < 1'000; ++n) {
    const uint64_t now = counter.value();
    ASSERT_GE(now, before);
    before = now;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), uint64_t{3} * kThreads * kAdds);
  EXPECT_EQ(histogram.values().counts[1], uint64_t{kThreads} * kAdds);
  EXPECT_EQ(histogram.values().sum_ns, uint64_t{1'500} * kThreads * kAdds);
}

TEST(Counter, ThreadAfterThreadContinuesTheCell) {
  Counter counter;
  for (int i = 0; i < 100; ++i) std::thread([&] { counter.add(); }).join();
  EXPECT_EQ(counter.value(), 100u);
}

TEST(ThreadSlot, LivingThreadsHaveDifferentCells) {
  std::set<std::size_t> own;
  std::vector<std::size_t> slots(kSlots / 2);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (std::size_t& slot : slots) {
    threads.emplace_back([&] {
      slot = thread_slot();
      ready.fetch_add(1);
      while (ready.load() < static_cast<int>(slots.size())) std::this_thread::yield();
      EXPECT_EQ(thread_slot(), slot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::size_t slot : slots) {
    EXPECT_LT(slot, kSharedSlot);
    EXPECT_TRUE(own.insert(slot).second) << slot;
  }
}

TEST(ThreadSlot, EndedThreadsGiveTheirCellsBack) {
  for (std::size_t i = 0; i < 4 * kSlots; ++i) {
    std::size_t slot = kSharedSlot;
    std::thread([&] { slot = thread_slot(); }).join();
    ASSERT_LT(slot, kSharedSlot) << "thread " << i;
  }
}

// Counts in its destructor, which runs after that of the thread's cell if it was made before.
struct LateCount {
  ~LateCount() {
    if (counter != nullptr) counter->add();
  }
  Counter* counter = nullptr;
};

TEST(ThreadSlot, DestructorsOfAThreadMayCount) {
  Counter counter;
  for (int i = 0; i < 50; ++i) {
    std::thread([&] {
      thread_local LateCount late;
      late.counter = &counter;
      counter.add();
    }).join();
  }
  EXPECT_EQ(counter.value(), 100u);
}

// Notes the cell that the thread has in the destructor.
struct LateSlot {
  ~LateSlot() {
    if (slot != nullptr) *slot = thread_slot();
  }
  std::size_t* slot = nullptr;
};

// Another thread may own the cell by then.
TEST(ThreadSlot, ThreadHasTheSharedCellAfterItHasGivenItsOwnBack) {
  std::size_t at_first = kSharedSlot;
  std::size_t at_end = 0;
  std::thread([&] {
    thread_local LateSlot late;
    late.slot = &at_end;
    at_first = thread_slot();
  }).join();
  EXPECT_LT(at_first, kSharedSlot);
  EXPECT_EQ(at_end, kSharedSlot);
}

TEST(Histogram, BoundsBelongToTheirBuckets) {
  EXPECT_EQ(Histogram::bucket_of(0), 0u);
  EXPECT_EQ(Histogram::bucket_of(1'000), 0u);
  for (std::size_t bucket = 0; bucket + 1 < kBuckets; ++bucket) {
    const auto bound = static_cast<uint64_t>(absl::ToInt64Nanoseconds(bucket_bound(bucket)));
    EXPECT_EQ(bound, uint64_t{1'000} << bucket);
    EXPECT_EQ(Histogram::bucket_of(bound), bucket);
    EXPECT_EQ(Histogram::bucket_of(bound + 1), bucket + 1);
  }
  EXPECT_EQ(Histogram::bucket_of(~uint64_t{0}), kBuckets - 1);
  EXPECT_EQ(bucket_bound(kBuckets - 1), absl::InfiniteDuration());
}

TEST(Histogram, QuantilesLieInTheRightBucket) {
  Histogram histogram;
  EXPECT_EQ(histogram.values().quantile(0.5), absl::ZeroDuration());
  for (int i = 0; i < 98; ++i) histogram.record(absl::Microseconds(10));
  for (int i = 0; i < 2; ++i) histogram.record(absl::Milliseconds(50));
  const HistogramValues values = histogram.values();
  EXPECT_EQ(values.count(), 100u);
  EXPECT_GT(values.quantile(0.5), absl::Microseconds(8));
  EXPECT_LE(values.quantile(0.5), absl::Microseconds(16));
  EXPECT_LE(values.quantile(0.98), absl::Microseconds(16));
  EXPECT_GT(values.quantile(0.99), absl::Milliseconds(32));
  EXPECT_LE(values.quantile(0.99), absl::Milliseconds(66));
  EXPECT_EQ(values.sum_ns, 98u * 10'000 + 2u * 50'000'000);
}

TEST(Histogram, QuantilesAreSpreadOverTheirBucket) {
  Histogram histogram;
  for (int i = 0; i < 4; ++i) histogram.record(absl::Microseconds(10));  // Between 8 us and 16 us.
  const HistogramValues values = histogram.values();
  EXPECT_EQ(values.quantile(0.25), absl::Microseconds(10));
  EXPECT_EQ(values.quantile(0.5), absl::Microseconds(12));
  EXPECT_EQ(values.quantile(1.0), absl::Microseconds(16));
}

TEST(Histogram, ExtremeDurationsStayInside) {
  Histogram histogram;
  histogram.record(-absl::Seconds(1));
  histogram.record(absl::Hours(2));
  EXPECT_EQ(histogram.values().counts[0], 1u);
  EXPECT_EQ(histogram.values().counts[kBuckets - 1], 1u);
  EXPECT_EQ(histogram.values().quantile(1.0), bucket_bound(kBuckets - 2));
  EXPECT_EQ(histogram.values().sum_ns, 7'200'000'000'000u);
}

TEST(Histogram, ValuesOfSeveralAddUp) {
  Histogram one, two;
  one.record(absl::Microseconds(1));
  two.record(absl::Microseconds(1));
  two.record(absl::Microseconds(3));
  HistogramValues values = one.values();
  values.add(two.values());
  EXPECT_EQ(values.counts[0], 2u);
  EXPECT_EQ(values.counts[2], 1u);
  EXPECT_EQ(values.sum_ns, 5'000u);
}

TEST(Gauge, GoesUpAndDown) {
  Gauge gauge;
  gauge.set(5);
  gauge.add(-7);
  EXPECT_EQ(gauge.value(), -2);
}

}  // namespace
}  // namespace gradwire::metrics
