#include "gradwire/base/threads/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/execution_state.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using Number = ExecutionSlot<int>;

int number_of_thread() { return Number::get() == nullptr ? 0 : *Number::get(); }

TEST(ThreadPool, OneThreadKeepsTheOrder) {
  ThreadPool pool({.num_threads = 1});
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(pool.post([&order, i] { order.push_back(i); }));
  pool.shutdown();
  ASSERT_EQ(order.size(), 100);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadPool, TaskThatThrowsEndsNothingElse) {
  ThreadPool pool({.num_threads = 1});
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    pool.post([&order, i] {
      order.push_back(i);
      throw std::runtime_error("the task fails");
    });
  }
  pool.shutdown();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(ThreadPool, RunsNumThreadsAtATime) {
  ThreadPool pool({.num_threads = 4});
  std::latch together(4);
  for (int i = 0; i < 4; ++i) pool.post([&together] { together.arrive_and_wait(); });
  pool.shutdown();
}

TEST(ThreadPool, RunsNoMoreThanNumThreadsAtATime) {
  ThreadPool pool({.num_threads = 3, .stall_limit = absl::Hours(1)});
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  for (int i = 0; i < 300; ++i) {
    pool.post([&] {
      const int now = ++running;
      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::yield();
      --running;
    });
  }
  pool.shutdown();
  EXPECT_LE(most, 3);
}

TEST(ThreadPool, CurrentExecutorIsThePool) {
  ThreadPool pool({});
  EXPECT_EQ(Executor::current(), nullptr);
  Executor* seen = nullptr;
  pool.post([&seen] { seen = Executor::current(); });
  pool.shutdown();
  EXPECT_EQ(seen, &pool);
}

TEST(ThreadPool, FiftyNestedWaitsWithOneThread) {
  auto pool =
      std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1, .stall_limit = absl::Hours(1)});
  std::function<int(int)> nested = [&](int depth) {
    if (depth == 0) return 0;
    Promise<int> promise(pool);
    pool->post([&nested, promise, depth] { promise.set_value(nested(depth - 1)); });
    return promise.future().wait() + 1;
  };
  EXPECT_EQ(nested(51), 51);
  pool->shutdown();
  EXPECT_EQ(pool->threads(), 0);
}

TEST(ThreadPool, TaskThatHoldsAMutexOfAnotherTaskIsRescued) {
  // The limit is long enough to distinguish this rescue from that of a spinning task, which takes a hundred
  // times as long, even if the machine stalls for seconds.
  constexpr absl::Duration kStallLimit = absl::Milliseconds(400);
  ThreadPool pool({.num_threads = 1, .stall_limit = kStallLimit});
  const absl::Time start = Clock::system().now();
  std::mutex mutex;
  std::latch holds(1);
  Promise<void> release;
  pool.post([&] {
    std::lock_guard lock(mutex);
    holds.count_down();
    release.future().wait();
  });
  holds.wait();
  pool.post([&mutex] {
    std::lock_guard lock(mutex);
  });  // Occupies the one slot and blocks without a BlockingScope.
  pool.post([&release] { release.set_value(); });
  release.future().wait();
  pool.shutdown();
  EXPECT_LT(Clock::system().now() - start, 90 * kStallLimit);
}

TEST(ThreadPool, TaskThatSpinsForAnotherIsRescued) {
  ThreadPool pool({.num_threads = 1, .stall_limit = absl::Microseconds(100)});
  std::atomic<bool> go{false};
  pool.post([&go] {
    while (!go) {
    }
  });
  pool.post([&go] { go = true; });
  pool.shutdown();
}

TEST(ThreadPool, LongComputationsStartNoThreads) {
  // The pool treats a computing thread as a spinning one after a hundred times the stall limit. That is far
  // longer than a loaded machine delays a thread.
  ThreadPool pool({.num_threads = 2, .stall_limit = absl::Milliseconds(10)});
  std::atomic<int> most{0};
  for (int i = 0; i < 4; ++i) {
    pool.post([&] {
      const absl::Time end = Clock::system().now() + absl::Milliseconds(100);
      while (Clock::system().now() < end) {
      }
      most = std::max(most.load(), pool.threads());
    });
  }
  pool.shutdown();
  EXPECT_LE(most, 3);
}

TEST(ThreadPool, WaitThatWouldBlockTheLastThreadGetsResourceExhausted) {
  auto pool = std::make_shared<ThreadPool>(ThreadPool::Options{.num_threads = 1, .max_threads = 4});
  std::function<absl::StatusOr<int>(int)> nested = [&](int depth) -> absl::StatusOr<int> {
    if (depth == 0) return 0;
    Promise<int> promise(pool);
    pool->post([&nested, promise, depth] { promise.set_result(nested(depth - 1)); });
    return promise.future().result();
  };
  // Three of the four threads may wait; the fourth must run the task that the third waits for.
  EXPECT_TRUE(nested(4).ok());
  const absl::Status status = nested(10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  pool->shutdown();
}

TEST(ThreadPool, ExcessThreadsEnd) {
  ThreadPool pool({.num_threads = 1, .stall_limit = absl::Hours(1)});
  std::latch all(50);
  Promise<void> release;
  for (int i = 0; i < 50; ++i) {
    pool.post([&] {
      all.count_down();
      release.future().wait();
    });
  }
  all.wait();
  EXPECT_EQ(pool.threads(), 50);
  EXPECT_EQ(pool.pending(), 50);
  release.set_value();
  while (pool.threads() > 3) std::this_thread::yield();
  Promise<void> works;
  pool.post([&works] { works.set_value(); });
  works.future().wait();
}

TEST(ThreadPool, TasksStartFromTheCleanStateAndLeaveNone) {
  ThreadPool pool({.num_threads = 1});
  Number::Scope scope(std::make_shared<int>(7));
  int posted = -1, clean = -1, after = -1;
  pool.post([&posted] { posted = number_of_thread(); });
  pool.post_clean([&clean] {
    clean = number_of_thread();
    Number::set(std::make_shared<int>(8));
  });
  pool.post_clean([&after] { after = number_of_thread(); });
  pool.shutdown();
  EXPECT_EQ(posted, 7);
  EXPECT_EQ(clean, 0);
  EXPECT_EQ(after, 0);
}

TEST(ThreadPool, ShutdownRunsQueuedTasksAndTheTasksThatTheyPost) {
  ThreadPool pool({.num_threads = 2});
  std::atomic<int> ran{0};
  Promise<void> release;
  for (int i = 0; i < 2; ++i) pool.post([release] { release.future().wait(); });
  for (int i = 0; i < 100; ++i) {
    pool.post([&] {
      if (!pool.post([&ran] { ++ran; })) ADD_FAILURE();
    });
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&pool] { pool.shutdown(); });
  release.set_value();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(pool.threads(), 0);
  EXPECT_EQ(pool.pending(), 0);
}

TEST(ThreadPool, PostAfterShutdownFailsAndPostOrRunRuns) {
  ThreadPool pool({});
  pool.shutdown();
  bool ran = false;
  EXPECT_FALSE(pool.post([&ran] { ran = true; }));
  EXPECT_FALSE(pool.post_clean([&ran] { ran = true; }));
  EXPECT_FALSE(ran);
  pool.post_or_run([&ran] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(ThreadPool, ManyPostersLoseNothing) {
  ThreadPool pool({.num_threads = 3});
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        pool.post([&ran, n] {
          if (n % 50 == 0) BlockingScope().status().IgnoreError();
          ++ran;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool.shutdown();
  EXPECT_EQ(ran, 2000);
}

}  // namespace
}  // namespace gradwire
