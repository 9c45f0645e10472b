#include "gradwire/rpc/order/stream_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace gradwire::rpc {
namespace {

// Each recorded fence gets the next number. Waits are noted.
int recorded = 0;
std::vector<int>& waited() {
  static std::vector<int> numbers;
  return numbers;
}

class NumberedFence : public StreamFence {
 public:
  explicit NumberedFence(int number) : number_(number) {}
  absl::Status wait() const override {
    waited().push_back(number_);
    return absl::OkStatus();
  }
  // The devices have reached all points up to 100.
  absl::StatusOr<bool> reached() const override { return number_ <= 100; }

 private:
  const int number_;
};

class StreamOrderTest : public ::testing::Test {
 protected:
  StreamOrderTest() {
    recorded = 0;
    waited().clear();
    install_stream_recorder([](const stream_fence_internal::Tensors& /*tensors*/) -> StreamFencePtr {
      return std::make_shared<NumberedFence>(++recorded);
    });
  }
  ~StreamOrderTest() override { install_stream_recorder(nullptr); }

  // Returns the fences that work which begins now waits for.
  std::vector<int> begin(StreamOrder::Work& work) {
    waited().clear();
    order_.begin(work);
    return std::exchange(waited(), {});
  }
  StreamOrder order_;
};

using Numbers = std::vector<int>;

TEST_F(StreamOrderTest, WorkWaitsForWorkThatHasEnded) {
  StreamOrder::Work a, b, c;
  EXPECT_EQ(begin(a), Numbers());
  EXPECT_EQ(begin(b), Numbers());
  order_.end(a);  // 1
  EXPECT_EQ(begin(c), Numbers({1}));
  order_.end(b);  // 2, at the same time as c, so it stays
  order_.end(c);  // 3, which comes after 1
  StreamOrder::Work d;
  EXPECT_EQ(begin(d), Numbers({2, 3}));
  order_.end(d);  // 4, which comes after both
  StreamOrder::Work e;
  EXPECT_EQ(begin(e), Numbers({4}));
}

TEST_F(StreamOrderTest, WorkWaitsForThreads) {
  order_.add();  // 1
  order_.add();  // 2
  StreamOrder::Work work;
  EXPECT_EQ(begin(work), Numbers({1, 2}));
  waited().clear();
  order_.wait();
  EXPECT_EQ(waited(), Numbers({1, 2}));
  EXPECT_FALSE(StreamOrder().fence());
}

TEST_F(StreamOrderTest, ReachedFencesDoNotPileUp) {
  for (int i = 0; i < 99; ++i) order_.add();
  StreamOrder::Work work;
  EXPECT_LT(begin(work).size(), 20u);
}

// ---- Many threads

constexpr int kThreads = 6;
// For each thread, how much of the work that it has enqueued.
using Progress = std::array<int, kThreads>;

// The current stream of this thread comes after this work.
thread_local Progress stream = {};

// The device has done this work.
std::array<std::atomic<int>, kThreads>& done_by_device() {
  static auto* const done = new std::array<std::atomic<int>, kThreads>{};
  return *done;
}

class ProgressFence : public StreamFence {
 public:
  absl::Status wait() const override {
    for (int i = 0; i < kThreads; ++i) stream[i] = std::max(stream[i], point_[i]);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> reached() const override {
    for (int i = 0; i < kThreads; ++i) {
      if (point_[i] > done_by_device()[i]) return false;
    }
    return true;
  }

 private:
  const Progress point_ = stream;
};

// Handlers, and threads that make calls, at the same time. Everything that a thread has enqueued before its
// end() or add() is before the work of a handler that begins afterwards.
TEST(StreamOrder, NoWorkOfOtherThreadsIsMissed) {
  install_stream_recorder([](const stream_fence_internal::Tensors& /*tensors*/) -> StreamFencePtr {
    return std::make_shared<ProgressFence>();
  });
  StreamOrder order;
  // The work that each thread has passed to `order`.
  std::array<std::atomic<int>, kThreads> passed = {};
  const auto expect_ordered = [](const Progress& before) {
    for (int i = 0; i < kThreads; ++i) EXPECT_GE(std::max(stream[i], done_by_device()[i].load()), before[i]);
  };
  const auto passed_so_far = [&passed] {
    Progress progress;
    for (int i = 0; i < kThreads; ++i) progress[i] = passed[i];
    return progress;
  };
  std::latch begun(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const bool handles = i < 2;
      begun.arrive_and_wait();
      for (int round = 0; round < 250; ++round) {
        StreamOrder::Work work;
        const Progress before = passed_so_far();
        if (handles) order.begin(work);
        const bool waits = !handles && round % 8 == 0;
        if (waits) order.wait();
        if (handles || waits) expect_ordered(before);
        // Lets other threads run during this work.
        if (round % 4 == 0) std::this_thread::yield();
        ++stream[i];
        if (handles) order.end(work);
        // So many that add() drops fences.
        for (int more = 0; more < 10 && !handles; ++more) order.add();
        passed[i] = stream[i];
        // The device is late.
        if (round % 50 == 0) done_by_device()[i] = stream[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  StreamOrder::Work last;
  order.begin(last);
  expect_ordered(passed_so_far());
  // When the device has done everything, the next add() drops the fences.
  for (int i = 0; i < kThreads; ++i) done_by_device()[i] = passed[i].load();
  for (int i = 0; i < 20; ++i) order.add();
  StreamOrder::Work after;
  order.begin(after);
  EXPECT_LE(after.waited_for.size(), 16u);
  install_stream_recorder(nullptr);
}

}  // namespace
}  // namespace gradwire::rpc
