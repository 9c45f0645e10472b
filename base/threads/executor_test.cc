#include "gradwire/base/threads/executor.h"

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gradwire/base/duty.h"
#include "gradwire/base/testing/executor_without_memory.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gtest/gtest.h"

namespace gradwire {
namespace {

using Number = ExecutionSlot<int>;

int number_in_slot() { return Number::get() == nullptr ? 0 : *Number::get(); }

// Runs its tasks on the thread of the test, when the test calls run_all().
class FakeExecutor : public Executor {
 public:
  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost*) override {
    if (closed) return false;
    tasks.push_back(std::move(task));
    return true;
  }
  void run_all() {
    set_current(this);
    for (Task& task : std::exchange(tasks, {})) task();
    set_current(nullptr);
  }

  bool closed = false;
  absl::Status admission;
  int blocking = 0;
  int begun = 0;
  std::vector<Task> tasks;

 protected:
  absl::Status begin_blocking(bool) override {
    if (!admission.ok()) return admission;
    ++begun;
    ++blocking;
    return absl::OkStatus();
  }
  void end_blocking() override { --blocking; }
};

TEST(Executor, PostCarriesTheStateAndLeavesNone) {
  FakeExecutor executor;
  int seen = -1;
  {
    Number::Scope scope(std::make_shared<int>(7));
    EXPECT_TRUE(executor.post([&seen] {
      seen = number_in_slot();
      Number::set(std::make_shared<int>(8));
    }));
  }
  executor.run_all();
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(number_in_slot(), 0);
}

TEST(Executor, TaskIsDestroyedInItsState) {
  FakeExecutor executor;
  int seen = -1;
  std::shared_ptr<int> probe(new int(0), [&seen](int* value) {
    seen = number_in_slot();
    delete value;
  });
  {
    Number::Scope scope(std::make_shared<int>(7));
    executor.post([probe = std::move(probe)] {});
  }
  executor.run_all();
  EXPECT_EQ(seen, 7);
}

TEST(Executor, RefusedTaskIsTheCallersAgain) {
  FakeExecutor executor;
  executor.closed = true;
  int runs = 0;
  Executor::Task task = [&runs] { ++runs; };
  EXPECT_FALSE(executor.post(task));
  EXPECT_EQ(runs, 0);
  task();
  EXPECT_EQ(runs, 1);
}

TEST(Executor, PostOrRunRunsHereAfterShutdown) {
  FakeExecutor executor;
  executor.closed = true;
  Number::Scope scope(std::make_shared<int>(7));
  int seen = -1;
  executor.post_or_run([&seen] {
    seen = number_in_slot();
    Number::set(nullptr);
  });
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(number_in_slot(), 7);
}

TEST(Executor, TaskWithoutMemoryIsTheCallersAgain) {
  ExecutorWithoutMemory executor;
  int runs = 0;
  Executor::Task task = [&] { ++runs; };
  EXPECT_THROW(executor.post(task), std::bad_alloc);
  EXPECT_FALSE(executor.post_clean_or_keep(task));
  task();
  EXPECT_EQ(runs, 1);
  executor.post_or_run([&] { ++runs; });
  EXPECT_EQ(runs, 2);
}

TEST(Executor, RefusedTaskRunsInAThreadThatMayWait) {
  FakeExecutor closed;
  closed.closed = true;
  ExecutorWithoutMemory no_memory;
  for (Executor* executor : std::initializer_list<Executor*>{&closed, &no_memory}) {
    const DutyScope duty;
    Number::Scope scope(std::make_shared<int>(7));
    int seen = -1;
    bool was_on_duty = true;
    executor->post_clean_or_run([&] {
      seen = number_in_slot();
      was_on_duty = on_duty();
      throw std::runtime_error("thrown by a task");
    });
    EXPECT_EQ(seen, 0);
    EXPECT_FALSE(was_on_duty);
    EXPECT_TRUE(on_duty());
    EXPECT_EQ(number_in_slot(), 7);
  }
}

TEST(BlockingScope, OutsideAnExecutorIsFree) {
  BlockingScope scope;
  EXPECT_TRUE(scope.status().ok());
}

TEST(BlockingScope, NestedCountsOnce) {
  FakeExecutor executor;
  executor.post_clean([&executor] {
    {
      BlockingScope outer;
      BlockingScope inner;
      EXPECT_EQ(executor.blocking, 1);
    }
    EXPECT_EQ(executor.blocking, 0);
    BlockingScope later;
    EXPECT_EQ(executor.blocking, 1);
  });
  executor.run_all();
  EXPECT_EQ(executor.blocking, 0);
  EXPECT_EQ(executor.begun, 2);
}

TEST(BlockingScope, RefusalIsReportedAndNotCounted) {
  FakeExecutor executor;
  executor.admission = absl::ResourceExhaustedError("full");
  int calls = 0;
  BlockingListener listener = [&calls] { ++calls; };
  executor.post_clean([&] {
    {
      const BlockingListenerScope listening(listener);
      {
        BlockingScope scope;
        EXPECT_EQ(scope.status().message(), "full");
      }
      executor.admission = absl::OkStatus();
      { BlockingScope scope; }
    }
    { BlockingScope scope; }
  });
  executor.run_all();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(executor.blocking, 0);
}

void wait_twice(FakeExecutor& executor, BlockingListener& listener) {
  executor.post_clean([&] {
    const BlockingListenerScope listening(listener);
    { BlockingScope scope; }
    { BlockingScope scope; }
  });
  executor.run_all();
}

TEST(BlockingScope, ListenerThatThrowsLeavesNothingBehind) {
  FakeExecutor executor;
  int calls = 0;
  BlockingListener listener = [&calls] {
    ++calls;
    throw std::runtime_error("the listener fails");
  };
  wait_twice(executor, listener);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(executor.blocking, 0);
}

TEST(BlockingScope, ListenerThatWaitsIsNotCalledByItself) {
  FakeExecutor executor;
  int calls = 0;
  BlockingListener listener = [&calls] {
    ++calls;
    BlockingScope scope;
  };
  wait_twice(executor, listener);
  EXPECT_EQ(calls, 2);
}

TEST(Executor, CodeOfUsersRunsLaterIfTheThreadIsOnDuty) {
  FakeExecutor executor;
  int runs = 0;
  executor.run_off_duty([&] { ++runs; });
  EXPECT_EQ(runs, 1);
  {
    const DutyScope duty;
    executor.run_off_duty([&] { ++runs; });
    EXPECT_EQ(runs, 1);
    executor.run_all();
    EXPECT_EQ(runs, 2);
    // At the end of the agent nobody waits for the thread.
    executor.closed = true;
    executor.run_off_duty([&] {
      EXPECT_FALSE(on_duty());
      ++runs;
    });
    EXPECT_EQ(runs, 3);
    EXPECT_TRUE(on_duty());
  }
  EXPECT_FALSE(on_duty());
}

TEST(BlockingScope, ThreadOnDutyMustNotWait) {
  const DutyScope duty;
  EXPECT_DEBUG_DEATH(BlockingScope(), "on_duty");
}

}  // namespace
}  // namespace gradwire
