#include "examples/remote_pipeline/shards.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <cmath>

#include "gradwire/rpc/remote_module.h"

namespace gradwire::examples {

GRADWIRE_RPC_MODULE(FirstShardImpl, int64_t)
GRADWIRE_RPC_MODULE(SecondShardImpl, int64_t, int64_t)

namespace {

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

// Two convolutions and a shortcut around them.
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : layers(register_module(
            "layers",
            torch::nn::Sequential(conv(in, out, 3, stride), torch::nn::BatchNorm2d(out), torch::nn::ReLU(),
                                  conv(out, out, 3, 1), torch::nn::BatchNorm2d(out)))),
        shortcut(register_module("shortcut", torch::nn::Sequential())) {
    if (stride == 1 && in == out) return;
    shortcut->push_back(conv(in, out, 1, stride));
    shortcut->push_back(torch::nn::BatchNorm2d(out));
  }
  at::Tensor forward(const at::Tensor& x) {
    return (layers->forward(x) + (shortcut->is_empty() ? x : shortcut->forward(x))).relu();
  }

  torch::nn::Sequential layers;
  torch::nn::Sequential shortcut;
};
TORCH_MODULE(Block);

}  // namespace

FirstShardImpl::FirstShardImpl(int64_t channels)
    : layers(register_module(
          "layers",
          torch::nn::Sequential(conv(1, channels, 3, 1), torch::nn::BatchNorm2d(channels), torch::nn::ReLU(),
                                Block(channels, channels, 1), Block(channels, channels, 1)))) {}

at::Tensor FirstShardImpl::forward(const rpc::RRef<at::Tensor>& images) {
  const at::Tensor x = images.to_here();
  const auto side = static_cast<int64_t>(std::sqrt(x.size(1)));
  const std::lock_guard<std::mutex> lock(mutex);
  return layers->forward(x.view({-1, 1, side, side}));
}

SecondShardImpl::SecondShardImpl(int64_t channels, int64_t classes)
    : layers(register_module("layers", torch::nn::Sequential(Block(channels, 2 * channels, 2),
                                                             Block(2 * channels, 4 * channels, 2)))),
      last(register_module("last", torch::nn::Linear(4 * channels, classes))) {}

at::Tensor SecondShardImpl::forward(const rpc::RRef<at::Tensor>& activations) {
  const at::Tensor x = activations.to_here();
  const std::lock_guard<std::mutex> lock(mutex);
  return last(layers->forward(x).mean({2, 3}));
}

}  // namespace gradwire::examples
