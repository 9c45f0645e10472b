#pragma once

#include <deque>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"

namespace gradwire {

// A queue whose tasks start one after another on an executor: the next starts when the running one says so,
// by calling what it was given (any thread, more than once does no harm) or by dropping it. Each task starts
// from the clean ExecutionState, whatever code told it to start. When the executor has shut down tasks run
// where the turn passes on. Thread-safe. Tasks keep the strand alive.
class Strand : public std::enable_shared_from_this<Strand> {
 public:
  // Lets the next task start.
  using Next = absl::AnyInvocable<void()>;
  using Task = absl::AnyInvocable<void(Next next)>;

  explicit Strand(std::shared_ptr<Executor> executor) : executor_(std::move(executor)) {}

  // Whether the task starts at once; else others are before it.
  bool post(Task task);

  // Who has the turn, as the task that runs says; for messages.
  void set_holder(std::weak_ptr<const void> holder);
  std::shared_ptr<const void> holder() const;

 private:
  class Turn;
  void start(Task task);
  void next();
  // Runs tasks here that the executor no longer takes.
  void run_inline(Executor::Task task);

  const std::shared_ptr<Executor> executor_;
  mutable Mutex mutex_;
  std::weak_ptr<const void> holder_ ABSL_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  // After the executor's end: somebody runs tasks in a loop, and takes what becomes due meanwhile, so that a
  // long queue does not become a deep stack.
  bool running_inline_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Executor::Task> due_inline_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
