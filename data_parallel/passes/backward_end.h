#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::data_parallel {

// Calls a function at the end of each pass of libtorch's engine that computes the gradient of a watched
// tensor, and another one if the pass fails before its end. A pass may run other passes inside, for example
// for checkpoints of activations; the end is that of the pass that reaches the tensor. Thread-safe.
class BackwardEnd {
 public:
  // `failed` may run on any thread, and after this object is gone.
  BackwardEnd(std::function<void()> ended, std::function<void()> failed)
      : state_(std::make_shared<State>(std::move(ended), std::move(failed))) {}

  // The tensors may outlive this object; passes that begin later call no function.
  void watch(const std::vector<at::Tensor>& tensors);
  // No pass runs: a pass that has failed before its end is over.
  void reset();

 private:
  struct State {
    State(std::function<void()> e, std::function<void()> f) : ended(std::move(e)), failed(std::move(f)) {}
    const std::function<void()> ended, failed;
    Mutex mutex;
    uint64_t passes ABSL_GUARDED_BY(mutex) = 0;
    // The number of the pass that runs and will call a function; 0: none.
    uint64_t running ABSL_GUARDED_BY(mutex) = 0;
  };
  class Pass;
  static void queue(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace gradwire::data_parallel
