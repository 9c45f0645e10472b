#include "examples/parameter_server/network.h"

#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC_MODULE(NetworkImpl, int64_t, int64_t, int64_t)

NetworkImpl::NetworkImpl(int64_t features, int64_t hidden, int64_t classes)
    : first(register_module("first", torch::nn::Linear(features, hidden))),
      second(register_module("second", torch::nn::Linear(hidden, classes))) {}

at::Tensor NetworkImpl::forward(const at::Tensor& images) { return second(first(images).relu()); }

}  // namespace gradwire::examples
