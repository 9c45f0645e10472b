#include "gradwire/rpc/link/flow_window.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace gradwire::rpc {
namespace {

FlowWindow::Bounds bounds(uint32_t calls, uint64_t bytes) {
  return FlowWindow::Bounds(FlowOptions{.max_calls = calls, .max_bytes = bytes});
}

// Keeps the credits of the calls that were admitted.
struct Entrance {
  FlowWindow::Admitted admit() {
    return [this](FlowCredit credit) { entered.push_back(std::move(credit)); };
  }
  std::vector<FlowCredit> entered;
};

TEST(FlowWindow, CreditsComeBackOnce) {
  FlowWindow window;
  FlowCredit first = window.try_enter(10, bounds(2, 100));
  ASSERT_TRUE(first);
  {
    FlowCredit second = window.try_enter(20, bounds(2, 100));
    EXPECT_EQ(window.usage().calls, 2u);
    EXPECT_EQ(window.usage().bytes, 30u);
    FlowCredit moved = std::move(second);
    EXPECT_FALSE(second);
    moved.give_back();
    moved.give_back();
    EXPECT_EQ(window.usage().calls, 1u);
  }
  first = FlowCredit();
  EXPECT_EQ(window.usage().calls, 0u);
  EXPECT_EQ(window.usage().bytes, 0u);
}

TEST(FlowWindow, CallsAndBytesAreBounded) {
  FlowWindow window;
  FlowCredit first = window.try_enter(60, bounds(2, 100));
  EXPECT_FALSE(window.try_enter(41, bounds(2, 100)));
  FlowCredit second = window.try_enter(40, bounds(2, 100));
  EXPECT_TRUE(second);
  EXPECT_FALSE(window.try_enter(0, bounds(2, 100)));
  first.give_back();
  EXPECT_TRUE(window.try_enter(0, bounds(2, 100)));
}

TEST(FlowWindow, MessageLargerThanTheWindowGoesAlone) {
  FlowWindow window;
  FlowCredit small = window.try_enter(1, bounds(10, 100));
  EXPECT_FALSE(window.try_enter(101, bounds(10, 100)));
  small.give_back();
  FlowCredit huge = window.try_enter(~uint64_t{0}, bounds(10, 100));
  ASSERT_TRUE(huge);
  EXPECT_FALSE(window.try_enter(0, bounds(10, 100)));
  huge.give_back();
  EXPECT_EQ(window.usage().bytes, 0u);
}

TEST(FlowWindow, ZeroMeansNoBound) {
  FlowWindow window;
  std::vector<FlowCredit> credits;
  for (int i = 0; i < 100'000; ++i) credits.push_back(window.try_enter(uint64_t{1} << 20, bounds(0, 0)));
  EXPECT_TRUE(credits.back());
  EXPECT_EQ(window.usage().calls, 100'000u);
}

TEST(FlowWindow, WaitersEnterInOrderAndNoCallOvertakes) {
  FlowWindow window;
  FlowCredit first = window.try_enter(60, bounds(10, 100));
  FlowCredit second = window.try_enter(30, bounds(10, 100));
  Entrance large;
  Entrance small;
  EXPECT_NE(window.wait(80, bounds(10, 100), large.admit()), 0u);
  // It would fit, but another call is waiting.
  EXPECT_FALSE(window.try_enter(1, bounds(10, 100)));
  EXPECT_NE(window.wait(1, bounds(10, 100), small.admit()), 0u);
  second.give_back();
  EXPECT_TRUE(large.entered.empty());
  EXPECT_TRUE(small.entered.empty());
  first.give_back();
  EXPECT_EQ(large.entered.size(), 1u);
  EXPECT_EQ(small.entered.size(), 1u);
  EXPECT_EQ(window.usage().bytes, 81u);
  EXPECT_FALSE(window.usage().awaited);
  EXPECT_TRUE(window.try_enter(1, bounds(10, 100)));
}

TEST(FlowWindow, CancelledWaitLetsSmallerCallsBehindIn) {
  FlowWindow window;
  FlowCredit first = window.try_enter(60, bounds(10, 100));
  Entrance large;
  Entrance small;
  const uint64_t waiter = window.wait(80, bounds(10, 100), large.admit());
  EXPECT_NE(window.wait(1, bounds(10, 100), small.admit()), 0u);
  EXPECT_TRUE(window.cancel_wait(waiter));
  EXPECT_FALSE(window.cancel_wait(waiter));
  EXPECT_TRUE(large.entered.empty());
  EXPECT_EQ(small.entered.size(), 1u);
  EXPECT_FALSE(window.usage().awaited);
}

TEST(FlowWindow, WaitingWhereThereIsRoomEntersAtOnce) {
  FlowWindow window;
  Entrance entrance;
  EXPECT_EQ(window.wait(5, bounds(1, 1), entrance.admit()), 0u);
  EXPECT_EQ(entrance.entered.size(), 1u);
  EXPECT_FALSE(window.cancel_wait(7));
}

// Threads enter, wait, cancel their wait and give credits back at random. The bounds hold at all times, every
// wait ends with a credit or is cancelled, and the window is empty at the end.
TEST(FlowWindow, ManyThreadsKeepTheBounds) {
  FlowWindow window;
  const FlowWindow::Bounds narrow = bounds(3, 100);
  std::atomic<int> inside{0};
  std::atomic<int> entered{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      uint32_t random = 12345 + t;
      for (int i = 0; i < 5'000; ++i) {
        random = random * 1664525 + 1013904223;
        const uint64_t bytes = random >> 25;
        FlowCredit credit = window.try_enter(bytes, narrow);
        if (!credit) {
          std::atomic<bool> admitted{false};
          const uint64_t waiter = window.wait(bytes, narrow, [&](FlowCredit given) {
            credit = std::move(given);
            admitted.store(true, std::memory_order_release);
          });
          if (waiter != 0 && (random >> 8) % 3 == 0 && window.cancel_wait(waiter)) continue;
          while (!admitted.load(std::memory_order_acquire)) std::this_thread::yield();
        }
        if (inside.fetch_add(1) + 1 > 3) exceeded = true;
        entered.fetch_add(1);
        inside.fetch_sub(1);
        credit.give_back();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_GT(entered.load(), 5'000);
  EXPECT_EQ(window.usage().calls, 0u);
  EXPECT_EQ(window.usage().bytes, 0u);
  EXPECT_FALSE(window.usage().awaited);
}

}  // namespace
}  // namespace gradwire::rpc
