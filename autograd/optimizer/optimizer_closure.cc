#include "gradwire/autograd/optimizer/optimizer_closure.h"

#include <utility>

namespace gradwire::autograd {

Future<ClosureTurns::Evaluation> ClosureTurns::evaluate() {
  Promise<Evaluation> promise;
  Future<Evaluation> future = promise.future();
  std::optional<Promise<void>> waiting;
  {
    MutexLock lock(mutex_);
    // After the end no thread takes requests. The promise is then destroyed, which cancels the future.
    if (!ended_) requests_.push_back(std::move(promise));
    waiting = std::exchange(waiting_, std::nullopt);
  }
  if (waiting.has_value()) waiting->set_value();
  return future;
}

// No wake-up is lost: `waiting_` is stored in the critical section that has found no request and no end.
// evaluate() and end() take `waiting_` under the same lock and complete it after unlocking.
std::optional<Promise<ClosureTurns::Evaluation>> ClosureTurns::next() {
  for (;;) {
    Future<void> changed;
    {
      MutexLock lock(mutex_);
      if (!requests_.empty()) {
        Promise<Evaluation> turn = std::move(requests_.front());
        requests_.pop_front();
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
    dropped.swap(requests_);
    waiting = std::exchange(waiting_, std::nullopt);
  }
  if (waiting.has_value()) waiting->set_value();
}

}  // namespace gradwire::autograd
