#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradwire {

// The recent duration of tasks of one kind. The executor that runs the tasks updates it. Thread-safe.
class TaskCost {
 public:
  uint32_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }
  // Updates the moving average. A single interrupted task has only a bounded effect.
  void record(int64_t nanoseconds) {
    constexpr int64_t kMost = 400'000;
    const int64_t old = nanoseconds_.load(std::memory_order_relaxed);
    const int64_t bounded = nanoseconds < kMost ? nanoseconds : kMost;
    nanoseconds_.store(static_cast<uint32_t>(old + (bounded - old) / 8), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> nanoseconds_{0};
};

// Runs tasks, each on a thread that has no user code below it. A task must not throw: nobody would learn of
// it but the log. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;

  // Runs `task` later, in the ExecutionState of the caller. Returns false after shutdown, and throws
  // std::bad_alloc without memory; then the caller keeps the task and may run or drop it.
  bool post(Task& task);
  bool post(Task&& task) { return post(task); }

  // As post(), but the task starts in the clean ExecutionState. `cost` describes tasks of this kind and must
  // outlive them.
  virtual bool post_clean(Task& task, TaskCost* cost = nullptr) = 0;
  bool post_clean(Task&& task, TaskCost* cost = nullptr) { return post_clean(task, cost); }

  // As post_clean(), but returns false also without memory.
  bool post_clean_or_keep(Task& task, TaskCost* cost = nullptr) noexcept;

  // As post_clean(), but runs the task inside this call, in the clean ExecutionState, if the executor has
  // shut down or there is no memory. For what must run exactly once.
  void post_clean_or_run(Task task, TaskCost* cost = nullptr) noexcept;

  // For a thread that is about to sleep until `done`: it receives data on behalf of the executor's tasks, for
  // a limited time and not beyond `deadline`. Returns whether `done` is true.
  virtual bool drive_until(const std::atomic<bool>& done, absl::Time deadline) { return done.load(); }

  // Runs `function` later, or inside this call if the executor has shut down or there is no memory for the
  // task. For what must run exactly once.
  template <class F>
  void post_or_run(F function) {
    Task task;
    try {
      // The allocation comes before the move.
      task = std::move(function);
      if (post(task)) return;
    } catch (const std::bad_alloc&) {
    }
    run_here([&] {
      if (task) {
        task();
      } else {
        function();
      }
    });
  }

  // Runs `function`, which runs code of users: as post_or_run() if the calling thread is on duty
  // (base/duty.h), else inside this call.
  template <class F>
  void run_off_duty(F function) {
    if (called_on_duty()) {
      post_or_run(std::move(function));
    } else {
      function();
    }
  }

  // The executor whose task the calling thread is running, or nullptr.
  static Executor* current();

 protected:
  friend class BlockingScope;
  // The calling task is about to wait. `drives`: whether the thread calls drive_until() before it sleeps.
  // ResourceExhausted if no thread would remain to run what the task waits for.
  virtual absl::Status begin_blocking(bool drives) = 0;
  virtual void end_blocking() = 0;
  static void set_current(Executor* executor);

 private:
  static bool called_on_duty();
  // For a task that cannot be posted: the agent, or the memory of the process, is at its end.
  static void run_here(absl::FunctionRef<void()> function);
};

// The executor for the callbacks of futures that have none: that of the agent of the calling thread, once the
// layer that knows agents has installed a source. nullptr without an agent.
using ExecutorSource = std::shared_ptr<Executor> (*)();
void set_executor_source(ExecutorSource source);
std::shared_ptr<Executor> adopted_executor();

// Encloses every wait. It notifies the executor of the calling thread, if any, that the thread is blocked, so
// that another thread takes its place. Check status() before waiting. An inner scope has no effect.
class BlockingScope {
 public:
  // `driven`: the executor whose drive_until() the thread calls before it sleeps; may be nullptr.
  explicit BlockingScope(const Executor* driven = nullptr);
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  Executor* const executor_;
  absl::Status status_;
};

// A listener that is called on a thread of an executor just before it blocks, after the wait was admitted.
// The code that runs a task may set a listener while the task runs: for example, an ordered queue starts its
// next task when the running one blocks.
using BlockingListener = absl::AnyInvocable<void()>;
class BlockingListenerScope {
 public:
  // `listener` must outlive the object.
  explicit BlockingListenerScope(BlockingListener& listener);
  ~BlockingListenerScope();
  BlockingListenerScope(const BlockingListenerScope&) = delete;
  BlockingListenerScope& operator=(const BlockingListenerScope&) = delete;

 private:
  BlockingListener* const previous_;
};

}  // namespace gradwire
