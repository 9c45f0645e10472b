#include "gradwire/tools/bench/suites/mlp.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <stdexcept>
#include <string>

namespace gradwire::bench {
namespace {

constexpr int kComparedSteps = 3;

// Returns a tensor of pseudo-random numbers between -scale and scale, which are the same on every machine.
at::Tensor scattered(at::IntArrayRef shape, double scale, double seed) {
  const int64_t size = c10::multiply_integers(shape);
  const at::Tensor large = at::arange(size, at::kDouble).mul(12.9898).add(seed).sin().mul(43758.5453);
  return large.sub(large.floor()).mul(2).sub(1).mul(scale).to(at::kFloat).reshape(shape);
}

}  // namespace

MlpLayer::MlpLayer(int64_t layer) : rectified_(layer == 0) {
  if (layer != 0 && layer != 1)
    throw std::invalid_argument("layer must be 0 or 1, got " + std::to_string(layer));
  const int64_t in = layer == 0 ? kMlpInputs : kMlpHidden;
  const int64_t out = layer == 0 ? kMlpHidden : kMlpClasses;
  const double scale = 1 / std::sqrt(static_cast<double>(in));
  parameters_ = {scattered({out, in}, scale, static_cast<double>(layer)), at::zeros({out}, at::kFloat)};
  for (at::Tensor& parameter : parameters_) parameter.requires_grad_();
}

at::Tensor MlpLayer::forward(const at::Tensor& x) const {
  const at::Tensor y = at::linear(x, parameters_[0], parameters_[1]);
  return rectified_ ? y.relu() : y;
}

at::Tensor mlp_images() { return scattered({kMlpBatch, kMlpInputs}, 1, 0.5); }

at::Tensor mlp_loss(const at::Tensor& logits) {
  static const at::Tensor labels = at::arange(kMlpBatch, at::kLong).remainder(kMlpClasses);
  return at::cross_entropy_loss(logits, labels);
}

LocalMlp::LocalMlp() : first_(0), second_(1), images_(mlp_images()) {
  std::vector<at::Tensor> parameters = first_.parameters();
  for (const at::Tensor& parameter : second_.parameters()) parameters.push_back(parameter);
  optimizer_ = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(kMlpLearningRate));
}

LocalMlp::~LocalMlp() = default;

float LocalMlp::step() {
  optimizer_->zero_grad();
  const at::Tensor loss = mlp_loss(second_.forward(first_.forward(images_)));
  loss.backward();
  optimizer_->step();
  return loss.item<float>();
}

void MlpCheck::next(float loss) {
  if (steps_ == 0) first_ = loss;
  const float max_loss = steps_ < kComparedSteps ? local_.step() * 1.0001F : first_;
  const float min_loss = steps_ < kComparedSteps ? max_loss * 0.9998F : 0;
  if (!(loss >= min_loss && loss <= max_loss)) {
    throw std::runtime_error("wrong loss in step " + std::to_string(steps_) + ": got " +
                             std::to_string(loss) + ", expected " + std::to_string(min_loss) + " to " +
                             std::to_string(max_loss));
  }
  ++steps_;
}

}  // namespace gradwire::bench
