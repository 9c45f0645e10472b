#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <vector>

#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/data_parallel/distributed_data_parallel.h"

// Helpers for tests of replicated modules. All numbers are small integers, so that float64 sums are exact in
// any order.
namespace gradwire::data_parallel {

using collectives::testing::Group;
using collectives::testing::Ranks;

// The timeout limits how long a test waits for a rank that has failed.
inline const collectives::ProcessGroupOptions kOptions{.timeout = absl::Seconds(60)};

// Every test runs over the reference backend.
inline const bool kUsesLocalBackend = [] {
  collectives::testing::use_local_backend();
  return true;
}();

inline at::Tensor integers(at::IntArrayRef sizes, int64_t seed, at::ScalarType dtype = at::kDouble) {
  const int64_t n = c10::multiply_integers(sizes);
  return at::arange(n, at::kLong).mul(7).add(seed * 3).remainder(5).sub(2).to(dtype).reshape(sizes);
}

inline void fill(const torch::nn::Module& module, int64_t seed) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& each : module.parameters()) each.copy_(integers(each.sizes(), seed++));
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype = at::kDouble)
      : first(register_module("first", torch::nn::Linear(4, 6))),
        second(register_module("second", torch::nn::Linear(6, 5))),
        third(register_module("third", torch::nn::Linear(5, 3))) {
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) { return third(second(first(x).relu()).relu()); }

  torch::nn::Linear first, second, third;
};
TORCH_MODULE(Net);

// A module with three branches: forward uses the branches that its arguments select, and never uses `unused`.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl()
      : left(register_module("left", torch::nn::Linear(2, 2))),
        right(register_module("right", torch::nn::Linear(2, 2))),
        unused(register_module("unused", torch::nn::Linear(2, 2))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    at::Tensor sum = x;
    if (use_left) sum = sum + left(x);
    if (use_right) sum = sum + right(x);
    return sum;
  }

  torch::nn::Linear left, right, unused;
};

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : module.parameters()) gradients.push_back(each.grad());
  return gradients;
}

// This rank's rows of a batch.
inline at::Tensor share(const at::Tensor& batch, const Group& group) {
  return batch.chunk(group->size())[group->rank()];
}

// Runs body(group, module, model) on each of `size` ranks. `model` is a replica of `module`, a Module whose
// parameters were filled with values that depend on the rank.
template <class Module, class Body>
void on_replicas(int size, const DistributedDataParallelOptions& options, Body body) {
  const Ranks ranks(size, kOptions);
  ranks.run([&](const Group& group) {
    auto net = std::make_shared<Module>();
    fill(*net, group->rank());
    DistributedDataParallelOptions own = options;
    own.group = group;
    DistributedDataParallel model(net, own);
    body(group, *net, model);
  });
}

}  // namespace gradwire::data_parallel
