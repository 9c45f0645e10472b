#pragma once

#include <torch/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/distributed_optimizer.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"

// Common code of the tests of optimizers. Each test must include it only once.
namespace gradwire::autograd {

// Two parameters on a worker.
class Layer {
 public:
  explicit Layer(const at::Tensor& weight) : weights_{leaf(weight), leaf(weight.flip(0) * 0.5)} {}

  std::vector<rpc::RRef<at::Tensor>> parameters() {
    return {rpc::RRef<at::Tensor>(weights_[0]), rpc::RRef<at::Tensor>(weights_[1])};
  }
  std::vector<at::Tensor> values() { return {weights_[0].detach().clone(), weights_[1].detach().clone()}; }
  void set_values(const std::vector<at::Tensor>& values) {
    at::NoGradGuard no_graph;
    for (std::size_t i = 0; i < values.size(); ++i) weights_[i].copy_(values[i]);
  }
  at::Tensor forward(const at::Tensor& x) { return run(x, weights_[0], weights_[1]); }
  // Uses the first parameter only.
  at::Tensor forward_first(const at::Tensor& x) { return x * weights_[0]; }
  std::vector<at::Tensor> gradients(int64_t context) {
    std::vector<at::Tensor> gradients;
    const Gradients all = get_gradients(context);
    for (const at::Tensor& weight : weights_) {
      const at::Tensor* found = all.find(weight);
      gradients.push_back(found == nullptr ? at::Tensor() : *found);
    }
    return gradients;
  }

  static at::Tensor run(const at::Tensor& x, const at::Tensor& first, const at::Tensor& second) {
    return (x * first).tanh() * second + 0.1 * first;
  }
  static at::Tensor leaf(const at::Tensor& value) { return value.detach().clone().requires_grad_(); }

 private:
  std::vector<at::Tensor> weights_;
};
GRADWIRE_RPC_CLASS(Layer, at::Tensor)
GRADWIRE_RPC_METHOD(Layer, parameters)
GRADWIRE_RPC_METHOD(Layer, values)
GRADWIRE_RPC_METHOD(Layer, set_values)
GRADWIRE_RPC_METHOD(Layer, forward)
GRADWIRE_RPC_METHOD(Layer, forward_first)
GRADWIRE_RPC_METHOD(Layer, gradients)

inline at::Tensor input(int step) { return torch::sin(torch::arange(6, torch::kFloat) + 0.7 * step) + 0.2; }

// Two layers in sequence, on two owners; and a copy of their parameters in this process.
struct Pair {
  explicit Pair(const rpc::testing::Group& group, const char* first_owner = "worker1",
                const char* second_owner = "worker2")
      : layers{group[0]->remote<Layer>(first_owner, torch::linspace(-1, 1, 6)),
               group[0]->remote<Layer>(second_owner, torch::linspace(2, 0.5, 6))} {
    for (const auto& layer : layers) {
      for (auto& parameter : layer.rpc_sync<&Layer::parameters>()) parameters.push_back(parameter);
    }
    for (const at::Tensor& value : values()) local.push_back(Layer::leaf(value));
  }

  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const auto& layer : layers) {
      for (at::Tensor& each : layer.rpc_sync<&Layer::values>()) values.push_back(std::move(each));
    }
    return values;
  }
  void set_values(const std::vector<at::Tensor>& values) const {
    layers[0].rpc_sync<&Layer::set_values>(std::vector<at::Tensor>(values.begin(), values.begin() + 2));
    layers[1].rpc_sync<&Layer::set_values>(std::vector<at::Tensor>(values.begin() + 2, values.end()));
  }
  at::Tensor loss(int step) const {
    return layers[1].rpc_sync<&Layer::forward>(layers[0].rpc_sync<&Layer::forward>(input(step))).pow(2).sum();
  }
  at::Tensor local_loss(int step) const {
    return Layer::run(Layer::run(input(step), local[0], local[1]), local[2], local[3]).pow(2).sum();
  }
  std::vector<at::Tensor> gradients(const Context& context) const {
    std::vector<at::Tensor> gradients;
    for (const auto& layer : layers) {
      for (at::Tensor& each : layer.rpc_sync<&Layer::gradients>(context.id())) gradients.push_back(each);
    }
    return gradients;
  }

  rpc::RRef<Layer> layers[2];
  std::vector<rpc::RRef<at::Tensor>> parameters;
  // Leaves in this process with the same values.
  std::vector<at::Tensor> local;
};

inline bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size() || i < b.size(); ++i) {
    if (i >= a.size() || i >= b.size() || !torch::equal(a[i], b[i])) return false;
  }
  return true;
}

// Options whose values are all different from the defaults.
inline torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01);
}
inline torch::optim::SGDOptions nesterov_options() {
  return torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true);
}
inline torch::optim::AdamOptions adam_options() {
  return torch::optim::AdamOptions(0.05).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.02).amsgrad(true);
}
inline torch::optim::AdamWOptions adamw_options() {
  return torch::optim::AdamWOptions(0.05).betas({0.8, 0.99}).eps(1e-6).weight_decay(0.02).amsgrad(true);
}
inline torch::optim::AdagradOptions adagrad_options() {
  return torch::optim::AdagradOptions(0.05)
      .lr_decay(0.1)
      .weight_decay(0.02)
      .initial_accumulator_value(0.3)
      .eps(1e-6);
}
inline torch::optim::RMSpropOptions rmsprop_options() {
  return torch::optim::RMSpropOptions(0.02).alpha(0.9).eps(1e-6).weight_decay(0.02).momentum(0.5).centered(
      true);
}
inline torch::optim::LBFGSOptions lbfgs_options() {
  return torch::optim::LBFGSOptions(0.5)
      .max_iter(4)
      .max_eval(7)
      .tolerance_grad(1e-6)
      .tolerance_change(1e-8)
      .history_size(3)
      .line_search_fn("strong_wolfe");
}

}  // namespace gradwire::autograd
