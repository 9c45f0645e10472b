#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::collectives {

// Calls a function at the end of each pass of libtorch's engine that computes the gradient of a watched
// tensor. A pass may run other passes inside, for example for checkpoints of activations; the end is that of
// the pass that reaches the tensor. Thread-safe.
class BackwardEnd {
 public:
  explicit BackwardEnd(std::function<void()> function)
      : state_(std::make_shared<State>(std::move(function))) {}

  // The tensors may outlive this object; then the function is not called.
  void watch(const std::vector<at::Tensor>& tensors);
  // No pass runs: a pass that has failed before its end is over.
  void reset();

 private:
  struct State {
    explicit State(std::function<void()> f) : function(std::move(f)) {}
    const std::function<void()> function;
    Mutex mutex;
    // Whether the pass that runs will call the function.
    bool queued ABSL_GUARDED_BY(mutex) = false;
  };
  static void queue(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace gradwire::collectives
