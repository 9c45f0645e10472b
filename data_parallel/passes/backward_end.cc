#include "gradwire/data_parallel/passes/backward_end.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace gradwire::collectives {

void BackwardEnd::watch(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.requires_grad()) continue;
    tensor.register_hook([weak = std::weak_ptr<State>(state_)](const at::Tensor&) {
      if (const std::shared_ptr<State> state = weak.lock(); state != nullptr) queue(state);
    });
  }
}

void BackwardEnd::reset() {
  MutexLock lock(state_->mutex);
  state_->queued = false;
}

void BackwardEnd::queue(const std::shared_ptr<State>& state) {
  {
    MutexLock lock(state->mutex);
    if (std::exchange(state->queued, true)) return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([state] {
    {
      MutexLock lock(state->mutex);
      state->queued = false;
    }
    state->function();
  });
}

}  // namespace gradwire::collectives
