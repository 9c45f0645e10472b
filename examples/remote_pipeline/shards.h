#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <mutex>

#include "gradwire/rpc/rref.h"

namespace gradwire::examples {

// The two shards of a small residual network, each for its own worker. They take references, so that an
// activation goes from one shard to the next without a detour. A shard computes one micro-batch at a time.
// Registered in shards.cc.
struct FirstShardImpl : torch::nn::Module {
  explicit FirstShardImpl(int64_t channels);
  // Images, float [n, features] -> activations, float [n, channels, height, width]
  at::Tensor forward(const rpc::RRef<at::Tensor>& images);

  std::mutex mutex;
  torch::nn::Sequential layers;
};

struct SecondShardImpl : torch::nn::Module {
  SecondShardImpl(int64_t channels, int64_t classes);
  // Activations of the first shard -> scores, float [n, classes]
  at::Tensor forward(const rpc::RRef<at::Tensor>& activations);

  std::mutex mutex;
  torch::nn::Sequential layers;
  torch::nn::Linear last;
};

}  // namespace gradwire::examples
