#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>

#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// The trainer's side of a step that evaluates the loss itself (LBFGS). The owner requests evaluations with
// calls, and the trainer's thread, which waits for the step, runs them. A turn is one such evaluation.
// Thread-safe.
class ClosureTurns {
 public:
  // The loss, and the context {origin, counter} that holds its gradients until the next turn.
  using Evaluation = std::tuple<at::Tensor, uint64_t, uint64_t>;

  // Requests an evaluation. The owner calls it.
  Future<Evaluation> evaluate();

  // Waits for the next request; nullopt after the step has ended. Only one thread may call it.
  std::optional<Promise<Evaluation>> next();
  // Records that the step has ended. Cancels requests that were not taken.
  void end();

 private:
  Mutex mutex_;
  std::deque<Promise<Evaluation>> requests_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Completed when `requests_` or `ended_` changes. Set while next() waits.
  std::optional<Promise<void>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
