#include "gradwire/autograd/pass/root_wait.h"

#include <utility>

namespace gradwire::autograd {

void RootWait::end(const absl::Status& status) {
  if (status.ok()) {
    completion_.set_value();
  } else {
    wave_over_.set_error(status);
    completion_.set_error(status);
  }
  wake();
}

void RootWait::attend() {
  MutexLock lock(mutex_);
  attended_ = true;
}

bool RootWait::hand_over(ArrivedRun& arrived) {
  {
    MutexLock lock(mutex_);
    if (!attended_) return false;
    arrived_.push_back(std::move(arrived));
  }
  wake();
  return true;
}

// No wake-up and no RUN is lost:
// 1. end() and hand_over() first change what this function examines, and then call wake(), which takes the
//    lock.
// 2. This function examines both and stores `more_` with the lock held. So either it sees the change, or
//    wake() sees `more_`.
// 3. When it finds the end it resets `attended_` in the same critical section. A later RUN is not handed
//    over, so none stays in `arrived_`.
RootWait::Batch RootWait::take() {
  const Future<void> completion = completion_.future();
  const Promise<void> more(completion.executor());
  Batch batch{.arrived = {}, .ended = false, .more = more.future()};
  MutexLock lock(mutex_);
  batch.ended = completion.done();
  batch.arrived.swap(arrived_);
  if (batch.ended) {
    attended_ = false;
  } else if (batch.arrived.empty()) {
    more_ = more;
  }
  return batch;
}

// The promise is completed without the lock, because continuations of its future may run inside set_value().
void RootWait::wake() {
  std::optional<Promise<void>> more;
  {
    MutexLock lock(mutex_);
    more.swap(more_);
  }
  if (more) more->set_value();
}

}  // namespace gradwire::autograd
