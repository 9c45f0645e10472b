#pragma once

#include <deque>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

// A queue whose tasks start one after another on an executor. The next task starts when the running task
// calls its `next` argument (from any thread; repeated calls have no effect) or drops it. Each task starts in
// the clean ExecutionState. After the executor has shut down, a task runs on the thread that ends the turn of
// the task before it. Thread-safe. Queued tasks keep the strand alive.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  // Ends the turn of the running task: lets the next task start.
  using Next = absl::AnyInvocable<void()>;
  using Task = absl::AnyInvocable<void(Next next)>;

  explicit Strand(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Returns whether the task starts at once; otherwise other tasks are queued before it.
  bool post(Task task);

  // The object that the running task works for, as set by that task. Used in messages.
  void set_holder(std::weak_ptr<const void> holder);
  std::shared_ptr<const void> holder() const;

 private:
  class Turn;
  void start(Task task);
  void next();
  // Runs a task on the calling thread after the executor has shut down.
  void run_inline(Executor::Task task);

  const std::shared_ptr<Executor> executor_;
  mutable Mutex mutex_;
  std::weak_ptr<const void> holder_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  // After the shutdown of the executor, one thread runs tasks in a loop, including those that become due
  // meanwhile. So a long queue does not use a deep stack.
  bool running_inline_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Executor::Task> due_inline_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
