#include "gradwire/base/testing/failing_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "gradwire/base/process/shortage.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/threads/poller.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"

namespace gradwire {
namespace {

// A poller that never finds anything.
class IdlePoller final : public Poller {
 public:
  bool try_enter() noexcept override { return !driven_.exchange(true); }
  Found poll() noexcept override { return kNothing; }
  void leave() noexcept override { driven_ = false; }
  void pause(bool) noexcept override { driven_ = false; }
  bool wanted() const override { return false; }
  void want(bool) override {}
  void sleep(absl::Duration) override {}
  void wake() override {}

 private:
  std::atomic<bool> driven_{false};
};

TEST(WithoutThreads, PoolIsRefusedWithTheLimit) {
  const FailingThreads none;
  const absl::Status refused = make_with_threads<ThreadPool>(ThreadPool::Options{}).status();
  EXPECT_TRUE(is_local_shortage(refused)) << refused;
}

TEST(WithoutThreads, PoolWithoutALeaderIsRefused) {
  const FailingThreads only_the_supervisor(1);
  const absl::Status refused =
      make_with_threads<ThreadPool>(ThreadPool::Options{.poller = std::make_shared<IdlePoller>()}).status();
  EXPECT_TRUE(is_local_shortage(refused)) << refused;
}

TEST(WithoutThreads, TaskRunsWhenThereAreThreadsAgain) {
  ThreadPool pool(ThreadPool::Options{.num_threads = 1});
  std::atomic<bool> ran{false};
  {
    const FailingThreads none;
    pool.post([&ran] { ran = true; });
    ASSERT_TRUE(eventually([&] { return none.failed() >= 2; }));
    EXPECT_EQ(pool.threads(), 0);
    EXPECT_FALSE(ran);
  }
  EXPECT_TRUE(eventually([&] { return ran.load(); }));
}

TEST(WithoutThreads, TimersAreRefusedWithTheLimit) {
  const FailingThreads none;
  const absl::Status refused = make_with_threads<TimerQueue>().status();
  EXPECT_TRUE(is_local_shortage(refused)) << refused;
}

TEST(WithoutThreads, RepeatedTaskIsRefusedWithTheLimit) {
  const FailingThreads none;
  const absl::Status refused = RepeatedTask::start({.name = "task"}, [] {}).status();
  EXPECT_TRUE(is_local_shortage(refused)) << refused;
}

}  // namespace
}  // namespace gradwire
