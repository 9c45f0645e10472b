#include "gradwire/tools/bench/suites/flat_mlp.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/sub.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/tools/bench/suites/mlp.h"

namespace gradwire::bench {
namespace {

std::vector<at::Tensor> initial_tensors() {
  std::vector<at::Tensor> tensors;
  for (const int64_t number : {0, 1}) {
    const MlpLayer layer(number);
    for (const at::Tensor& parameter : layer.parameters()) tensors.push_back(parameter.detach());
  }
  return tensors;
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return at::cat(parts);
}

// Returns leaves with the values of the parts of `parameters`, without copying them.
std::vector<at::Tensor> leaves_of(const at::Tensor& parameters) {
  static const auto& shapes = *new std::vector<at::Tensor>(initial_tensors());
  int64_t size = 0;
  for (const at::Tensor& shape : shapes) size += shape.numel();
  if (!parameters.defined() || parameters.dim() != 1 || parameters.numel() != size ||
      parameters.scalar_type() != at::kFloat) {
    throw std::invalid_argument("wrong parameters: expected " + std::to_string(size) + " floats");
  }
  std::vector<at::Tensor> leaves;
  int64_t begin = 0;
  for (const at::Tensor& shape : shapes) {
    leaves.push_back(parameters.narrow(0, begin, shape.numel()).view(shape.sizes()).detach());
    leaves.back().requires_grad_();
    begin += shape.numel();
  }
  return leaves;
}

struct Model {
  Mutex mutex;
  at::Tensor parameters ABSL_GUARDED_BY(mutex);
};

Model& model() {
  static Model& only = *[] {
    auto* made = new Model;
    const MutexLock lock(made->mutex);
    made->parameters = FlatMlp::initial_parameters();
    return made;
  }();
  return only;
}

}  // namespace

FlatMlp::FlatMlp() : images_(mlp_images()) {}

at::Tensor FlatMlp::initial_parameters() { return flat(initial_tensors()); }

at::Tensor FlatMlp::gradient(const at::Tensor& parameters) {
  const std::vector<at::Tensor> leaves = leaves_of(parameters);
  const at::Tensor hidden = at::linear(images_, leaves[0], leaves[1]).relu();
  const at::Tensor loss = mlp_loss(at::linear(hidden, leaves[2], leaves[3]));
  loss.backward();
  loss_ = loss.item<float>();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return flat(gradients);
}

at::Tensor model_parameters() {
  Model& only = model();
  const MutexLock lock(only.mutex);
  return only.parameters;
}

int64_t apply_model_gradient(const at::Tensor& gradient) {
  Model& only = model();
  // Both trainers may push at the same time, and a pulled vector may still be on its way to a trainer. So
  // each push makes a new vector.
  const MutexLock lock(only.mutex);
  only.parameters = at::sub(only.parameters, gradient, kMlpLearningRate);
  return gradient.numel();
}

}  // namespace gradwire::bench
