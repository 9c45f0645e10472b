#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace gradwire::examples {

// The model, two layers. The server owns its parameters. Registered in network.cc, so any worker may create
// one on another worker, or use one through an RRef.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl(int64_t features, int64_t hidden, int64_t classes);

  // float [n, features] -> scores, float [n, classes]
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Linear first;
  torch::nn::Linear second;
};

}  // namespace gradwire::examples
