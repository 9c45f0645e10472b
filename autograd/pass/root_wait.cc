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

RootWait::News RootWait::take() {
  const Future<void> completion = completion_.future();
  const Promise<void> more(completion.executor());
  News news{.arrived = {}, .ended = false, .more = more.future()};
  MutexLock lock(mutex_);
  news.ended = completion.done();
  news.arrived.swap(arrived_);
  if (news.ended) {
    attended_ = false;
  } else if (news.arrived.empty()) {
    more_ = more;
  }
  return news;
}

void RootWait::wake() {
  std::optional<Promise<void>> more;
  {
    MutexLock lock(mutex_);
    more.swap(more_);
  }
  if (more) more->set_value();
}

}  // namespace gradwire::autograd
