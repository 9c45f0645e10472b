#include "gradwire/base/threads/strand.h"

#include <atomic>
#include <utility>

#include "gradwire/base/threads/execution_state.h"

namespace gradwire {

// Passes the turn on once: when told to, or when nobody can tell any more.
class Strand::Turn {
 public:
  explicit Turn(std::shared_ptr<Strand> strand) : strand_(std::move(strand)) {}
  ~Turn() { pass(); }
  void pass() {
    if (!passed_.exchange(true)) strand_->next();
  }

 private:
  const std::shared_ptr<Strand> strand_;
  std::atomic<bool> passed_{false};
};

bool Strand::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (busy_) {
      waiting_.push_back(std::move(task));
      return false;
    }
    busy_ = true;
  }
  start(std::move(task));
  return true;
}

void Strand::set_holder(std::weak_ptr<const void> holder) {
  MutexLock lock(mutex_);
  holder_.swap(holder);
}

std::shared_ptr<const void> Strand::holder() const {
  MutexLock lock(mutex_);
  return holder_.lock();
}

void Strand::start(Task task) {
  Executor::Task run = [task = std::move(task), turn = std::make_shared<Turn>(shared_from_this())]() mutable {
    task([turn = std::move(turn)] { turn->pass(); });
  };
  if (!executor_->post_clean(run)) run_inline(std::move(run));
}

void Strand::run_inline(Executor::Task task) {
  {
    MutexLock lock(mutex_);
    due_inline_.push_back(std::move(task));
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
    ScopedExecutionState clean((ExecutionState()));
    due();
    due = nullptr;
  }
}

void Strand::next() {
  Task task;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      busy_ = false;
      return;
    }
    task = std::move(waiting_.front());
    waiting_.pop_front();
  }
  start(std::move(task));
}

}  // namespace gradwire
