#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace gradwire {

// How long tasks of one kind have been taking; kept by the executor that runs them. Thread-safe.
class TaskCost {
 public:
  uint32_t nanoseconds() const { return nanoseconds_.load(std::memory_order_relaxed); }
  // A moving average in which one task that was interrupted does not count for much.
  void record(int64_t nanoseconds) {
    constexpr int64_t kMost = 400'000;
    const int64_t old = nanoseconds_.load(std::memory_order_relaxed);
    const int64_t bounded = nanoseconds < kMost ? nanoseconds : kMost;
    nanoseconds_.store(static_cast<uint32_t>(old + (bounded - old) / 8), std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> nanoseconds_{0};
};

// Runs tasks, each on a thread that has no user code below it. A task must not throw. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;

  // Runs `task` later, in the ExecutionState of the caller. False after shutdown; the task is the caller's
  // again then, to run or to drop.
  bool post(Task& task);
  bool post(Task&& task) { return post(task); }

  // The same, but the task starts from the clean ExecutionState. `cost` is that of tasks of its kind, and
  // outlives the tasks.
  virtual bool post_clean(Task& task, TaskCost* cost = nullptr) = 0;
  bool post_clean(Task&& task, TaskCost* cost = nullptr) { return post_clean(task, cost); }

  // For a thread that is about to sleep until `done`: does what the executor's tasks wait for meanwhile, for
  // a while and not beyond `deadline`. Whether it is done.
  virtual bool look_until(const std::atomic<bool>& done, absl::Time deadline) { return done.load(); }

  // Runs `task` later, or here and now if the executor has shut down: for what must run exactly once.
  void post_or_run(Task task);

  // The executor whose task the calling thread is running, or nullptr.
  static Executor* current();

 protected:
  friend class BlockingScope;
  // The calling task is about to wait; `looks`: and calls look_until first. ResourceExhausted when no thread
  // would be left to run what it waits for.
  virtual absl::Status begin_blocking(bool looks) = 0;
  virtual void end_blocking() = 0;
  static void set_current(Executor* executor);
};

// Stands around every wait: tells the executor of the calling thread, if it is one's, that the thread is out
// of use, so that another takes its place. Check status() before waiting. A scope inside another has nothing
// to tell.
class BlockingScope {
 public:
  // `looks_with`, which may be nullptr: the executor whose look_until the thread calls before it sleeps.
  explicit BlockingScope(const Executor* looks_with = nullptr);
  ~BlockingScope();
  BlockingScope(const BlockingScope&) = delete;
  BlockingScope& operator=(const BlockingScope&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  Executor* const executor_;
  absl::Status status_;
};

// Called on a thread of an executor just before it blocks, when the wait has been admitted; whoever runs a
// task may set one for the task's duration (an ordered queue lets its next task start when the running one
// blocks). Returns the previous one.
using BlockingListener = absl::AnyInvocable<void()>;
BlockingListener* set_blocking_listener(BlockingListener* listener);

}  // namespace gradwire
