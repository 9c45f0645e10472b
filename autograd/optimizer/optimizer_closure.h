#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>

#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// The trainer's side of a step that evaluates the loss itself (LBFGS): the owner asks for evaluations, and
// the trainer's thread, which waits for the step, makes them. Thread-safe.
class ClosureTurns {
 public:
  // The loss, and the context {origin, counter} that its gradients are in until the next turn.
  using Evaluation = std::tuple<at::Tensor, uint64_t, uint64_t>;

  // Called by the owner.
  Future<Evaluation> evaluate();

  // The next evaluation that is asked for; nullopt once the step has ended. For one thread.
  std::optional<Promise<Evaluation>> next();
  // The step has ended.
  void end();

 private:
  Mutex mutex_;
  std::deque<Promise<Evaluation>> asked_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Completed when one of the above changes.
  std::optional<Promise<void>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
