#include "rpc/strand.h"

#include <atomic>
#include <utility>

namespace gradwire::rpc {

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

void Strand::post(Task task) {
  {
    MutexLock lock(mutex_);
    if (busy_) {
      waiting_.push_back(std::move(task));
      return;
    }
    busy_ = true;
  }
  start(std::move(task));
}

void Strand::start(Task task) {
  executor_->post_or_run([task = std::move(task), turn = std::make_shared<Turn>(shared_from_this())]() mutable {
    task([turn = std::move(turn)] { turn->pass(); });
  });
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

}  // namespace gradwire::rpc
