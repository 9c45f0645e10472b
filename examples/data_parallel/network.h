#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace gradwire::examples {

// The model, two layers. Every rank has a replica of it.
struct DigitsNetworkImpl : torch::nn::Module {
  DigitsNetworkImpl(int64_t features, int64_t hidden, int64_t classes)
      : first(register_module("first", torch::nn::Linear(features, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, classes))) {}

  // float [n, features] -> scores, float [n, classes]
  at::Tensor forward(const at::Tensor& images) { return second(first(images).relu()); }

  torch::nn::Linear first;
  torch::nn::Linear second;
};

}  // namespace gradwire::examples
