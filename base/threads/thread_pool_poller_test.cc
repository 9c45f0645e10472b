// Tests of a pool that drives a poller.

#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

// A poller whose data the test injects with arrive().
class FakePoller : public Poller {
 public:
  using Event = std::function<void()>;

  // Injects an event, as another process would, and wakes the thread in sleep().
  void arrive(Event event) {
    {
      MutexLock lock(mutex_);
      events_.push_back(std::move(event));
    }
    wake();
  }

  bool try_enter() noexcept override {
    if (driven_.exchange(true)) return false;
    MutexLock lock(mutex_);
    ++entered_[std::this_thread::get_id()];
    return true;
  }
  int entered_by(std::thread::id thread) {
    MutexLock lock(mutex_);
    return entered_[thread];
  }
  Found poll() noexcept override {
    std::vector<Event> events;
    {
      MutexLock lock(mutex_);
      events.swap(events_);
    }
    for (Event& event : events) event();
    return events.empty() ? kNothing : kWork;
  }
  void leave() noexcept override {
    driven_ = false;
    MutexLock lock(mutex_);
    if (!events_.empty()) woken_ = true;
    changed_.notify_all();
  }
  void pause(bool) noexcept override { driven_ = false; }
  bool wanted() const override { return wanted_ > 0; }
  void want(bool yes) override { wanted_ += yes ? 1 : -1; }
  void sleep(absl::Duration at_most) override {
    MutexLock lock(mutex_);
    // It may return early, so a spurious wake-up does no harm.
    if (!woken_) (void)changed_.wait_for(mutex_, at_most);
    woken_ = false;
  }
  void wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }

 private:
  std::atomic<bool> driven_{false};
  std::atomic<int> wanted_{0};
  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::thread::id, int> entered_ ABSL_GUARDED_BY(mutex_);
};

ThreadPool::Options with(std::shared_ptr<Poller> poller, int threads, int max_threads = 64) {
  ThreadPool::Options options;
  options.num_threads = threads;
  options.max_threads = max_threads;
  options.poller = std::move(poller);
  return options;
}

constexpr absl::Duration kTimeout = absl::Seconds(30);

// Only mostly: if the machine delays the thread that found the task, another thread takes it.
TEST(PollingPool, TaskMostlyRunsOnTheThreadThatFoundIt) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 4));
  constexpr int kTasks = 100;
  int on_finder = 0;
  for (int i = 0; i < kTasks; ++i) {
    Promise<bool> same;
    poller->arrive([&] {
      pool->post_clean([finder = std::this_thread::get_id(), same] {
        same.set_value(finder == std::this_thread::get_id());
      });
    });
    if (same.future().wait()) ++on_finder;
  }
  EXPECT_GT(on_finder, kTasks / 2);
  pool->shutdown();
}

TEST(PollingPool, LongTaskDoesNotDelayMessagesForOthers) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 2));
  std::atomic<bool> end{false};
  Promise<void> started;
  poller->arrive([&] {
    pool->post_clean([&, started] {
      started.set_value();
      while (!end) std::this_thread::yield();
    });
  });
  started.future().wait();
  Promise<void> served;
  poller->arrive([&] { pool->post_clean([served] { served.set_value(); }); });
  EXPECT_TRUE(served.future().wait_for(kTimeout));
  end = true;
  pool->shutdown();
}

TEST(PollingPool, AnswersAreHandledWhileAllSlotsAreTaken) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1, /*max_threads=*/1));
  std::atomic<bool> end{false};
  Promise<void> started;
  pool->post_clean([&, started] {
    started.set_value();
    while (!end) std::this_thread::yield();
  });
  started.future().wait();
  // This event posts no task: it is handled inside poll().
  Promise<void> answered;
  poller->arrive([answered] { answered.set_value(); });
  EXPECT_TRUE(answered.future().wait_for(kTimeout));
  end = true;
  pool->shutdown();
}

TEST(PollingPool, WaitEndsWhicheverThreadFindsTheAnswer) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  for (int i = 0; i < 500; ++i) {
    Promise<int> answer(pool);
    poller->arrive([answer, i] { answer.set_value(i); });
    EXPECT_EQ(answer.future().wait(), i);
  }
  pool->shutdown();
}

TEST(PollingPool, WaitWithZeroTimeoutDoesNotPoll) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  const int before = poller->entered_by(std::this_thread::get_id());
  Promise<int> answer(pool);
  EXPECT_FALSE(answer.future().wait_for(absl::ZeroDuration()));
  EXPECT_EQ(poller->entered_by(std::this_thread::get_id()), before);
  answer.set_value(1);
  pool->shutdown();
}

TEST(PollingPool, WaitEndsIfItsDeadlinePassesBeforeTheFirstPoll) {
  auto pool = std::make_shared<ThreadPool>(with(std::make_shared<FakePoller>(), 1));
  Promise<int> answer(pool);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(answer.future().wait_for(absl::Nanoseconds(1)));
  pool->shutdown();
}

// Work that a waiting thread does for others does not see the ExecutionState of the waiting thread.
TEST(PollingPool, WaitingThreadDrivesInTheCleanState) {
  using Number = ExecutionSlot<int>;
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  Number::Scope scope(std::make_shared<const int>(7));
  for (int i = 0; i < 50; ++i) {
    Promise<bool> clean(pool);
    poller->arrive([clean] { clean.set_value(Number::get() == nullptr); });
    EXPECT_TRUE(clean.future().wait());
    EXPECT_EQ(*Number::get(), 7);
  }
  pool->shutdown();
}

// The leader takes both tasks. Each is expected to be long enough that another leader is appointed, and both
// wait.
TEST(PollingPool, TwoTasksOfOnePollThatWaitAreAnswered) {
  auto poller = std::make_shared<FakePoller>();
  ThreadPool::Options options = with(poller, 4);
  options.wait = {absl::ZeroDuration(), absl::ZeroDuration()};
  auto pool = std::make_shared<ThreadPool>(options);
  // Starts four threads, which idle afterwards.
  auto together = std::make_shared<std::latch>(4);
  for (int i = 0; i < 4; ++i) pool->post_clean([together] { together->arrive_and_wait(); });
  for (int round = 0; round < 20; ++round) {
    static TaskCost cost;
    for (int i = 0; i < 100; ++i) cost.record(110'000);
    Promise<void> answers[2] = {Promise<void>(pool), Promise<void>(pool)};
    Promise<void> waiting[2];
    Promise<bool> ended[2];
    poller->arrive([&] {
      for (int i = 0; i < 2; ++i) {
        Executor::Task task = [answer = answers[i].future(), started = waiting[i], end = ended[i]] {
          started.set_value();
          end.set_value(answer.wait_for(kTimeout));
        };
        pool->post_clean(task, &cost);
      }
    });
    for (const Promise<void>& started : waiting) started.future().wait();
    poller->arrive([&] {
      for (const Promise<void>& answer : answers) answer.set_value();
    });
    for (const Promise<bool>& end : ended) EXPECT_TRUE(end.future().wait()) << "round " << round;
  }
  pool->shutdown();
}

// A poll that takes long does not keep a posted task from idle threads.
TEST(PollingPool, TaskIsNotLeftToALeaderThatIsHeldUp) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 3));
  std::latch held(1);
  Promise<void> in_poll;
  poller->arrive([&, in_poll] {
    in_poll.set_value();
    held.wait();
  });
  in_poll.future().wait();
  Promise<void> ran;
  pool->post_clean([ran] { ran.set_value(); });
  EXPECT_TRUE(ran.future().wait_for(kTimeout));
  held.count_down();
  pool->shutdown();
}

TEST(PollingPool, NestedWaitsNeedOneThread) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  std::function<int(int)> nest = [&](int depth) {
    if (depth == 0) return 0;
    Promise<int> inner(pool);
    poller->arrive(
        [&, inner, depth] { pool->post_clean([&, inner, depth] { inner.set_value(nest(depth - 1)); }); });
    return inner.future().wait() + 1;
  };
  Promise<int> outer;
  pool->post_clean([&, outer] { outer.set_value(nest(40)); });
  EXPECT_EQ(outer.future().wait(), 40);
  pool->shutdown();
}

// The leader queues a task for itself, while a task that blocks without a BlockingScope occupies the only
// slot.
TEST(PollingPool, TaskThatBlocksUnseenIsRescuedByATaskThatTheLeaderQueued) {
  auto poller = std::make_shared<FakePoller>();
  for (int i = 0; i < 20; ++i) {
    auto pool = std::make_shared<ThreadPool>(with(poller, 1));
    Mutex held;
    held.lock();
    Promise<void> blocked;
    poller->arrive([&] {
      pool->post_clean([&, blocked] {
        blocked.set_value();
        MutexLock lock(held);
      });
    });
    blocked.future().wait();
    Promise<void> rescued;
    poller->arrive([&] { pool->post_clean([rescued] { rescued.set_value(); }); });
    EXPECT_TRUE(rescued.future().wait_for(kTimeout));
    held.unlock();
    pool->shutdown();
  }
}

TEST(PollingPool, ManyPostersAndEventsLoseNothing) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 3));
  constexpr int kEach = 3000;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) pool->post_clean([&ran] { ++ran; });
    });
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        poller->arrive([&] { pool->post_clean([&ran] { ++ran; }); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Promise<void> last;
  poller->arrive([last] { last.set_value(); });
  last.future().wait();
  pool->shutdown();
  EXPECT_EQ(ran, 4 * kEach);
}

TEST(PollingPool, CostIsMeasured) {
  auto pool = std::make_shared<ThreadPool>(with(std::make_shared<FakePoller>(), 1));
  static TaskCost cost;
  for (int i = 0; i < 8; ++i) {
    Executor::Task task = [] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
      while (std::chrono::steady_clock::now() < end) {
      }
    };
    pool->post_clean(task, &cost);
  }
  pool->shutdown();
  EXPECT_GT(cost.nanoseconds(), 100'000u);
  for (int i = 0; i < 100; ++i) cost.record(1000);
  EXPECT_LT(cost.nanoseconds(), 5'000u);
}

}  // namespace
}  // namespace gradwire
