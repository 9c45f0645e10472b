#include "gradwire/autograd/optimizer/optimizer_closure.h"

#include <utility>

namespace gradwire::autograd {

Future<ClosureTurns::Evaluation> ClosureTurns::evaluate() {
  Promise<Evaluation> promise;
  Future<Evaluation> future = promise.future();
  std::optional<Promise<void>> waiting;
  {
    MutexLock lock(mutex_);
    // Once the step has ended nobody evaluates any more: the promise goes, which cancels the future.
    if (!ended_) asked_.push_back(std::move(promise));
    waiting = std::exchange(waiting_, std::nullopt);
  }
  if (waiting.has_value()) waiting->set_value();
  return future;
}

std::optional<Promise<ClosureTurns::Evaluation>> ClosureTurns::next() {
  for (;;) {
    Future<void> changed;
    {
      MutexLock lock(mutex_);
      if (!asked_.empty()) {
        Promise<Evaluation> turn = std::move(asked_.front());
        asked_.pop_front();
        return turn;
      }
      if (ended_) return std::nullopt;
      waiting_.emplace();
      changed = waiting_->future();
    }
    changed.wait();
  }
}

void ClosureTurns::end() {
  std::deque<Promise<Evaluation>> dropped;
  std::optional<Promise<void>> waiting;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    dropped.swap(asked_);
    waiting = std::exchange(waiting_, std::nullopt);
  }
  if (waiting.has_value()) waiting->set_value();
}

}  // namespace gradwire::autograd
