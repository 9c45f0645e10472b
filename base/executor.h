#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace gradwire {

// Runs tasks, each on a thread that has no user code below it. A task must not throw. Thread-safe.
class Executor {
 public:
  using Task = absl::AnyInvocable<void()>;

  virtual ~Executor() = default;

  // Runs `task` later, in the ExecutionState of the caller. False after shutdown; the task is the caller's
  // again then, to run or to drop.
  bool post(Task& task);
  bool post(Task&& task) { return post(task); }

  // The same, but the task starts from the clean ExecutionState.
  virtual bool post_clean(Task& task) = 0;
  bool post_clean(Task&& task) { return post_clean(task); }

  // Runs `task` later, or here and now if the executor has shut down: for what must run exactly once.
  void post_or_run(Task task);

  // The executor whose task the calling thread is running, or nullptr.
  static Executor* current();

 protected:
  friend class BlockingScope;
  // The calling task is about to wait. ResourceExhausted when no thread would be left to run what it waits
  // for.
  virtual absl::Status begin_blocking() = 0;
  virtual void end_blocking() = 0;
  static void set_current(Executor* executor);
};

// Stands around every wait: tells the executor of the calling thread, if it is one's, that the thread is out
// of use, so that another takes its place. Check status() before waiting. A scope inside another has nothing
// to tell.
class BlockingScope {
 public:
  BlockingScope();
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
