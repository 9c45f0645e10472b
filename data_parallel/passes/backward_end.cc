#include "gradwire/data_parallel/passes/backward_end.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace gradwire::data_parallel {

// One pass. The engine's task for the pass owns it. If the pass fails, the engine destroys the task without a
// call of end(). That happens before backward() throws, except if a thread of a device has run the node that
// failed: that thread may keep the task a moment longer.
class BackwardEnd::Pass {
 public:
  Pass(std::shared_ptr<State> state, uint64_t number) : state_(std::move(state)), number_(number) {}
  ~Pass() {
    // With the lock held: the next pass must not begin meanwhile.
    MutexLock lock(state_->mutex);
    if (state_->running != number_) return;
    state_->running = 0;
    state_->failed();
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  void end() {
    {
      MutexLock lock(state_->mutex);
      if (state_->running == number_) state_->running = 0;
    }
    state_->ended();
  }

 private:
  const std::shared_ptr<State> state_;
  const uint64_t number_;
};

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
  state_->running = 0;
}

void BackwardEnd::queue(const std::shared_ptr<State>& state) {
  std::shared_ptr<Pass> pass;
  {
    MutexLock lock(state->mutex);
    if (state->running != 0) return;
    state->running = ++state->passes;
    pass = std::make_shared<Pass>(state, state->running);
  }
  torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->end(); });
}

}  // namespace gradwire::data_parallel
