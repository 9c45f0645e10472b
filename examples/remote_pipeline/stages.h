#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

namespace gradwire::examples {

// The two halves of a model, each for its own worker. Registered in stages.cc.
struct FirstStageImpl : torch::nn::Module {
  FirstStageImpl(int64_t features, int64_t hidden);
  // float [n, features] -> float [n, hidden]
  at::Tensor forward(const at::Tensor& images);

  torch::nn::Linear linear;
};

struct SecondStageImpl : torch::nn::Module {
  SecondStageImpl(int64_t hidden, int64_t classes);
  // float [n, hidden] -> scores, float [n, classes]
  at::Tensor forward(const at::Tensor& activations);

  torch::nn::Linear middle;
  torch::nn::Linear last;
};

}  // namespace gradwire::examples
