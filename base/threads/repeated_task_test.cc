#include "gradwire/base/threads/repeated_task.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "gradwire/base/duty.h"
#include "gradwire/base/manual_clock.h"
#include "gradwire/base/testing/eventually.h"

namespace gradwire {
namespace {

TEST(RepeatedTask, RunsOncePerPeriodOnAnotherThread) {
  ManualClock clock;
  std::atomic<int> runs{0};
  std::atomic<bool> elsewhere{true};
  const auto task = RepeatedTask::start({.name = "test", .period = absl::Seconds(1), .clock = &clock},
                                        [&, self = std::this_thread::get_id()] {
                                          if (std::this_thread::get_id() == self || on_duty())
                                            elsewhere = false;
                                          ++runs;
                                        });
  ASSERT_TRUE(task.ok()) << task.status();
  // The thread counts from the time at which it begins to wait. So the time goes on until it has run.
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(eventually([&] {
      if (runs < i) clock.advance(absl::Milliseconds(500));
      return runs >= i;
    }));
  }
  EXPECT_TRUE(elsewhere);
}

TEST(RepeatedTask, DestructorEndsTheWait) {
  ManualClock clock;
  std::atomic<int> runs{0};
  {
    const auto task = RepeatedTask::start({.name = "test", .clock = &clock}, [&] { ++runs; });
    ASSERT_TRUE(task.ok()) << task.status();
  }
  clock.advance(absl::Hours(1));
  EXPECT_EQ(runs, 0);
}

TEST(RepeatedTask, DestructorDoesNotWaitForTheTask) {
  struct Shared {
    std::promise<void> begun;
    std::promise<void> release;
    std::shared_future<void> released = release.get_future().share();
    std::atomic<int> runs{0};
    std::promise<void> gone;
    ~Shared() { gone.set_value(); }
  };
  auto shared = std::make_shared<Shared>();
  std::future<void> gone = shared->gone.get_future();
  auto task = RepeatedTask::start({.name = "test", .period = absl::Nanoseconds(1)}, [shared] {
    if (++shared->runs > 1) return;
    shared->begun.set_value();
    shared->released.wait();
  });
  ASSERT_TRUE(task.ok()) << task.status();
  shared->begun.get_future().wait();
  task = absl::CancelledError("destroyed");
  EXPECT_EQ(shared->runs, 1);
  shared->release.set_value();
  shared = nullptr;
  // The thread ends, and destroys the task.
  gone.wait();
}

// A clock for which the thread does not return from its wait before the test says so.
class StuckClock : public Clock {
 public:
  absl::Time now() const override { return absl::UnixEpoch(); }
  void wait_until(Mutex& mutex, CondVar& condition, absl::Time) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    waiting_.set_value();
    condition.wait(mutex);
    // The destructor of the task needs the mutex.
    mutex.unlock();
    released_.get_future().wait();
    mutex.lock();
  }
  void wait_for_thread() { waiting_.get_future().wait(); }
  void release() { released_.set_value(); }

 private:
  std::promise<void> waiting_;
  std::promise<void> released_;
};

TEST(RepeatedTask, DestructorOnDutyDoesNotWaitForTheThread) {
  StuckClock clock;
  std::promise<void> gone;
  {
    const auto owned = std::shared_ptr<void>(nullptr, [&](void*) { gone.set_value(); });
    auto task = RepeatedTask::start({.name = "test", .clock = &clock}, [owned] {});
    ASSERT_TRUE(task.ok()) << task.status();
    clock.wait_for_thread();
    const DutyScope duty;
    task = absl::CancelledError("destroyed");
  }
  clock.release();
  // The thread ends, and destroys the task.
  gone.get_future().wait();
}

TEST(RepeatedTask, TaskMayDestroyItsOwner) {
  struct Owner {
    std::shared_ptr<void> repeated;
    std::promise<void> gone;
    ~Owner() { gone.set_value(); }
  };
  std::promise<void> begun;
  std::promise<void> released;
  auto owner = std::make_shared<Owner>();
  const std::future<void> gone = owner->gone.get_future();
  auto started = repeat({.name = "test", .period = absl::Nanoseconds(1)})(
      [&, weak = std::weak_ptr<Owner>(owner), first = std::make_shared<std::atomic<bool>>(true)] {
        const std::shared_ptr<Owner> self = weak.lock();
        if (self == nullptr || !first->exchange(false)) return;
        begun.set_value();
        released.get_future().wait();
      });
  ASSERT_TRUE(started.ok()) << started.status();
  owner->repeated = *std::move(started);
  started = absl::CancelledError("moved");
  begun.get_future().wait();
  owner = nullptr;
  released.set_value();
  gone.wait();
}

}  // namespace
}  // namespace gradwire
