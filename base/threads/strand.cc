#include "gradwire/base/threads/strand.h"

#include <atomic>
#include <utility>

#include "gradwire/base/duty.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/execution_state.h"

namespace gradwire {

// How a strand keeps its order: `busy_` is true from the start of a task until no task waits any more.
// 1. post() starts the task if the strand is not busy. Otherwise it appends the task to `waiting_`.
// 2. start() gives the task a Turn and hands both to the executor.
// 3. When the turn ends, next() starts the first waiting task. `busy_` stays true in between, so that a
//    concurrent post() cannot overtake the waiting tasks.
//
// A Turn owns the strand, and a task owns its Turn. So the strand lives until its last task has ended, even
// if all other owners have dropped it.

// Ends the turn of a task, exactly once: on the first call of pass(), or when the last reference is dropped.
class Strand::Turn {
 public:
  ~Turn() { pass(); }
  void begin(std::shared_ptr<Strand> strand) { strand_ = std::move(strand); }
  // The task may pass on one thread while the last reference is dropped on another: only the first one
  // counts.
  void pass() {
    if (strand_ != nullptr && !passed_.exchange(true)) strand_->next();
  }

 private:
  // nullptr until the turn begins: a task that is removed has none.
  std::shared_ptr<Strand> strand_;
  std::atomic<bool> passed_{false};
};

uint64_t Strand::post(Task task) {
  Queued queued{std::make_shared<Turn>(), nullptr};
  queued.run = [task = std::move(task), turn = queued.turn]() mutable {
    task([turn = std::move(turn)] { turn->pass(); });
  };
  {
    MutexLock lock(mutex_);
    if (busy_) {
      waiting_.emplace(next_number_, std::move(queued));
      return next_number_++;
    }
    busy_ = true;
  }
  start(std::move(queued));
  return 0;
}

Executor::Task Strand::remove(uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(number);
  if (found == waiting_.end()) return nullptr;
  Executor::Task removed = std::move(found->second.run);
  waiting_.erase(found);
  return removed;
}

void Strand::set_holder(std::weak_ptr<const void> holder) {
  MutexLock lock(mutex_);
  holder_.swap(holder);
}

std::shared_ptr<const void> Strand::holder() const {
  MutexLock lock(mutex_);
  return holder_.lock();
}

void Strand::start(Queued task) noexcept {
  task.turn->begin(shared_from_this());
  // From here on the task alone owns its turn.
  task.turn = nullptr;
  // A refused task stays in `run`: the executor has shut down, or has no memory. The tasks of a strand must
  // still run, in order, because a later one may release what an earlier one holds.
  if (!executor_->post_clean_or_keep(task.run)) run_inline(std::move(task.run));
}

// Runs `task` on this thread. A task that ends its turn starts the next one, which calls this method again,
// one stack frame deeper for each task. To keep the stack short, only the outermost call runs tasks; inner
// calls add theirs to due_inline_.
void Strand::run_inline(Executor::Task task) noexcept {
  const OffDutyScope off_duty;
  const bool queued = run_contained("a task of a strand", [&] {
    MutexLock lock(mutex_);
    due_inline_.push_back(std::move(task));
  });
  if (!queued) {
    // Without memory for the queue: rather a deep stack than a task that never runs.
    ScopedExecutionState clean;
    run_contained("a task of a strand", task);
    return;
  }
  {
    MutexLock lock(mutex_);
    if (running_inline_) return;
    running_inline_ = true;
  }
  const std::shared_ptr<Strand> self = shared_from_this();
  while (true) {
    Executor::Task due;
    {
      MutexLock lock(mutex_);
      if (due_inline_.empty()) {
        running_inline_ = false;
        return;
      }
      due = std::move(due_inline_.front());
      due_inline_.pop_front();
    }
    ScopedExecutionState clean;
    run_contained("a task of a strand", due);
    due = nullptr;  // Destroy what the task owned in the clean state.
  }
}

void Strand::next() noexcept {
  Queued task;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      busy_ = false;
      return;
    }
    task = std::move(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
  start(std::move(task));
}

}  // namespace gradwire
