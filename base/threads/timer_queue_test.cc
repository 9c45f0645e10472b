#include "gradwire/base/threads/timer_queue.h"

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <memory>
#include <stdexcept>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

TEST(TimerQueue, RunsInOrderOfTimeWhenTheClockGetsThere) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::vector<int> order;  // Written by the timer thread, read after all.wait().
  std::latch first(1), all(3);
  const absl::Time start = clock.now();
  timers.schedule(start + absl::Seconds(3), [&] { order.push_back(3), all.count_down(); });
  timers.schedule(start + absl::Seconds(1),
                  [&] { order.push_back(1), all.count_down(), first.count_down(); });
  timers.schedule(start + absl::Seconds(2), [&] { order.push_back(2), all.count_down(); });
  EXPECT_EQ(timers.size(), 3);
  clock.advance(absl::Seconds(1));
  first.wait();
  EXPECT_EQ(timers.size(), 2);
  clock.advance(absl::Seconds(10));
  all.wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TimerQueue, TimerThatThrowsEndsNothingElse) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::latch ran(1);
  timers.schedule(clock.now() + absl::Seconds(1), [] { throw std::runtime_error("the timer fails"); });
  timers.schedule(clock.now() + absl::Seconds(2), [&] { ran.count_down(); });
  clock.advance(absl::Seconds(2));
  ran.wait();
}

TEST(TimerQueue, TimerThatThrowsRunsAgain) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::atomic<int> runs = 0;
  timers.schedule(clock.now() + absl::Seconds(1), [&] {
    if (++runs < 4) throw std::runtime_error("the timer fails");
  });
  EXPECT_TRUE(eventually([&] {
    clock.advance(absl::Seconds(1));
    return runs == 4;
  }));
  EXPECT_TRUE(eventually([&] { return timers.size() == 0; }));
}

TEST(TimerQueue, TimerThatThrowsAfterItWasCancelledDoesNotRunAgain) {
  ManualClock clock;
  TimerQueue timers(clock);
  auto held = std::make_shared<int>(0);
  std::latch ran(1);
  uint64_t id = 0;
  id = timers.schedule(clock.now() + absl::Seconds(1), [&, held] {
    EXPECT_FALSE(timers.cancel(id));
    throw std::runtime_error("the timer fails");
  });
  timers.schedule(clock.now() + absl::Seconds(2), [&] { ran.count_down(); });
  clock.advance(absl::Seconds(2));
  ran.wait();
  EXPECT_EQ(timers.size(), 0);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TimerQueue, EqualTimesRunInOrderOfScheduling) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::vector<int> order;
  std::latch all(10);
  for (int i = 0; i < 10; ++i) {
    timers.schedule(clock.now() + absl::Seconds(1),
                    [&order, &all, i] { order.push_back(i), all.count_down(); });
  }
  clock.advance(absl::Seconds(1));
  all.wait();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(order[i], i);
}

TEST(TimerQueue, PastTimeRunsAtOnceOnTheSystemClock) {
  TimerQueue timers;
  std::latch ran(2);
  timers.schedule(timers.clock().now() - absl::Seconds(1), [&] { ran.count_down(); });
  timers.schedule(timers.clock().now() + absl::Milliseconds(1), [&] { ran.count_down(); });
  ran.wait();
}

TEST(TimerQueue, EarlierTimerWakesTheThreadThatSleepsForALaterOne) {
  TimerQueue timers;
  timers.schedule(timers.clock().now() + absl::Hours(1), [] {});
  // The thread is asleep in at least one of the rounds.
  for (int round = 0; round < 20; ++round) {
    auto ran = std::make_shared<std::promise<void>>();
    timers.schedule(timers.clock().now() + absl::Milliseconds(1), [ran] { ran->set_value(); });
    ASSERT_EQ(ran->get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  }
}

TEST(TimerQueue, TimerThatHasRunCannotBeCancelled) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::latch ran(1);
  const uint64_t id = timers.schedule(clock.now() + absl::Seconds(1), [] {});
  timers.schedule(clock.now() + absl::Seconds(2), [&] { ran.count_down(); });
  clock.advance(absl::Seconds(2));
  ran.wait();
  EXPECT_FALSE(timers.cancel(id));
}

TEST(TimerQueue, CancelledTimerIsDestroyedAndNotRun) {
  ManualClock clock;
  TimerQueue timers(clock);
  auto held = std::make_shared<int>(0);
  std::latch ran(1);
  const uint64_t id = timers.schedule(clock.now() + absl::Seconds(1), [held] { ++*held; });
  timers.schedule(clock.now() + absl::Seconds(2), [&] { ran.count_down(); });
  EXPECT_TRUE(timers.cancel(id));
  EXPECT_FALSE(timers.cancel(id));
  EXPECT_EQ(held.use_count(), 1);
  clock.advance(absl::Seconds(5));
  ran.wait();
  EXPECT_EQ(*held, 0);
  EXPECT_FALSE(timers.cancel(12345));
}

TEST(TimerQueue, CallbackMayScheduleAndCancel) {
  ManualClock clock;
  TimerQueue timers(clock);
  std::latch ran(1);
  const uint64_t doomed = timers.schedule(clock.now() + absl::Seconds(2), [] { ADD_FAILURE(); });
  timers.schedule(clock.now() + absl::Seconds(1), [&] {
    EXPECT_TRUE(timers.cancel(doomed));
    timers.schedule(clock.now(), [&] { ran.count_down(); });
  });
  clock.advance(absl::Seconds(1));
  ran.wait();
  EXPECT_EQ(timers.size(), 0);
}

TEST(TimerQueue, InfiniteTimeIsNeverScheduled) {
  TimerQueue timers;
  EXPECT_EQ(timers.schedule(absl::InfiniteFuture(), [] {}), 0);
  EXPECT_EQ(timers.size(), 0);
}

TEST(TimerQueue, ShutdownDropsScheduledCallbacks) {
  ManualClock clock;
  TimerQueue timers(clock);
  auto held = std::make_shared<int>(0);
  timers.schedule(clock.now() + absl::Seconds(1), [held] { ++*held; });
  timers.shutdown();
  timers.shutdown();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(timers.schedule(clock.now(), [held] { ++*held; }), 0);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(*held, 0);
}

}  // namespace
}  // namespace gradwire
