#include "examples/remote_pipeline/stages.h"

#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC_MODULE(FirstStageImpl, int64_t, int64_t)
GRADWIRE_RPC_MODULE(SecondStageImpl, int64_t, int64_t)

FirstStageImpl::FirstStageImpl(int64_t features, int64_t hidden)
    : linear(register_module("linear", torch::nn::Linear(features, hidden))) {}

at::Tensor FirstStageImpl::forward(const at::Tensor& images) { return linear(images).relu(); }

SecondStageImpl::SecondStageImpl(int64_t hidden, int64_t classes)
    : middle(register_module("middle", torch::nn::Linear(hidden, hidden))),
      last(register_module("last", torch::nn::Linear(hidden, classes))) {}

at::Tensor SecondStageImpl::forward(const at::Tensor& activations) {
  return last(middle(activations).relu());
}

}  // namespace gradwire::examples
