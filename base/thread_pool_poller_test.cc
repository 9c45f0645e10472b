// A pool that drives a poller.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/future.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

// A poller into which tests throw what "arrives".
class FakePoller : public Poller {
 public:
  using News = std::function<void()>;

  // As another process would: wakes whoever sleeps.
  void arrive(News news) {
    {
      MutexLock lock(mutex_);
      news_.push_back(std::move(news));
    }
    wake();
  }

  bool try_enter() override { return !driven_.exchange(true); }
  bool poll() override {
    std::vector<News> news;
    {
      MutexLock lock(mutex_);
      news.swap(news_);
    }
    for (News& one : news) one();
    return !news.empty();
  }
  void leave() override {
    driven_ = false;
    MutexLock lock(mutex_);
    if (!news_.empty()) woken_ = true;
    changed_.notify_all();
  }
  void pause(bool) override { driven_ = false; }
  bool wanted() const override { return wanted_ > 0; }
  void want(bool yes) override { wanted_ += yes ? 1 : -1; }
  void sleep() override {
    MutexLock lock(mutex_);
    while (!woken_) changed_.wait(mutex_);
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
  std::vector<News> news_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

ThreadPool::Options with(std::shared_ptr<Poller> poller, int threads, int max_threads = 64) {
  ThreadPool::Options options;
  options.num_threads = threads;
  options.max_threads = max_threads;
  options.poller = std::move(poller);
  return options;
}

constexpr absl::Duration kPatience = absl::Seconds(30);

TEST(PollingPool, TaskRunsOnTheThreadThatFoundIt) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 4));
  for (int i = 0; i < 100; ++i) {
    Promise<bool> same;
    poller->arrive([&] {
      pool->post_clean([finder = std::this_thread::get_id(), same] {
        same.set_value(finder == std::this_thread::get_id());
      });
    });
    EXPECT_TRUE(same.future().wait());
  }
  pool->shutdown();
}

TEST(PollingPool, LongTaskDoesNotKeepNewsFromOthers) {
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
  EXPECT_TRUE(served.future().wait_for(kPatience));
  end = true;
  pool->shutdown();
}

TEST(PollingPool, AllPlacesTakenDoNotStopAnswers) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  std::atomic<bool> end{false};
  Promise<void> started;
  pool->post_clean([&, started] {
    started.set_value();
    while (!end) std::this_thread::yield();
  });
  started.future().wait();
  // Not a task: what is done where it is found.
  Promise<void> answered;
  poller->arrive([answered] { answered.set_value(); });
  EXPECT_TRUE(answered.future().wait_for(kPatience));
  end = true;
  pool->shutdown();
}

TEST(PollingPool, WaitEndsWhoeverFindsTheAnswer) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1));
  for (int i = 0; i < 500; ++i) {
    Promise<int> answer(pool);
    poller->arrive([answer, i] { answer.set_value(i); });
    EXPECT_EQ(answer.future().wait(), i);
  }
  pool->shutdown();
}

// The pool's only thread runs a task that computes: nobody but the waiting thread looks.
TEST(PollingPool, WaitingThreadDrivesWhereNobodyLeads) {
  auto poller = std::make_shared<FakePoller>();
  auto pool = std::make_shared<ThreadPool>(with(poller, 1, 1));
  std::atomic<bool> end{false};
  Promise<void> started;
  pool->post_clean([&, started] {
    started.set_value();
    while (!end) std::this_thread::yield();
  });
  started.future().wait();
  const std::thread::id here = std::this_thread::get_id();
  Promise<bool> answer(pool);
  poller->arrive([answer, here] { answer.set_value(std::this_thread::get_id() == here); });
  EXPECT_TRUE(answer.future().wait());
  end = true;
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

// What the leader queued for itself, while the only place is taken by a task that blocks unseen.
TEST(PollingPool, TaskThatBlocksUnseenIsRescuedByWhatTheLeaderQueued) {
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
    EXPECT_TRUE(rescued.future().wait_for(kPatience));
    held.unlock();
    pool->shutdown();
  }
}

TEST(PollingPool, ManyPostersAndNewsLoseNothing) {
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
