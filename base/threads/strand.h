#pragma once

#include <cstdint>
#include <deque>
#include <map>
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

  // Returns 0 if the task starts at once. Otherwise other tasks are queued before it, and the result is its
  // number for remove(). Throws std::bad_alloc, and then has dropped the task.
  uint64_t post(Task task);
  // Takes a queued task out, for example because nobody wants its result any more. Empty if it has started.
  Executor::Task remove(uint64_t number);

  // The object that the running task works for, as set by that task. Used in messages.
  void set_holder(std::weak_ptr<const void> holder);
  std::shared_ptr<const void> holder() const;

 private:
  class Turn;
  // A task with all that its turn needs, so that a later turn begins without memory.
  struct Queued {
    std::shared_ptr<Turn> turn;
    Executor::Task run;
  };
  void start(Queued task) noexcept;
  void next() noexcept;
  // Runs a task on the calling thread, because the executor has refused it.
  void run_inline(Executor::Task task) noexcept;

  const std::shared_ptr<Executor> executor_;
  mutable Mutex mutex_;
  std::weak_ptr<const void> holder_ ABSL_GUARDED_BY(mutex_);
  // By number: in the order in which they were posted.
  std::map<uint64_t, Queued> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  // After the shutdown of the executor, one thread runs tasks in a loop, including those that become due
  // meanwhile. So a long queue does not use a deep stack.
  bool running_inline_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Executor::Task> due_inline_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
