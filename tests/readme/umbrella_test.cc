#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/gradwire.h"

namespace {

int64_t twice(int64_t x) { return 2 * x; }
GRADWIRE_RPC(twice)

// The header gradwire/gradwire.h and its target contain every part of the library.
TEST(Umbrella, ContainsEveryPart) {
  auto store = std::make_shared<gradwire::store::HashStore>();
  gradwire::collectives::init_process_group({.world_size = 1, .rank = 0, .store = store});
  at::Tensor tensor = at::ones({2});
  gradwire::collectives::all_reduce(tensor);
  EXPECT_EQ(tensor.sum().item<float>(), 2);
  EXPECT_EQ(gradwire::collectives::DistributedSampler(3).size(), 3u);
  {
    const std::vector<at::Tensor> parameters = {at::ones({2}).requires_grad_()};
    gradwire::collectives::ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
        parameters, torch::optim::SGDOptions(0.1));
    const auto reduction = gradwire::collectives::allreduce_hook(gradwire::collectives::world());
    EXPECT_NE(gradwire::collectives::hook_with_zero_step(reduction, optimizer), nullptr);
  }
  gradwire::collectives::destroy_process_group();

  gradwire::rpc::init_rpc("only", 0, 1, {.store = store});
  EXPECT_EQ(gradwire::rpc::rpc_sync<&twice>("only", 4), 8);
  {
    const at::Tensor leaf = at::ones({2}).requires_grad_();
    gradwire::autograd::Context context;
    gradwire::autograd::backward(context, {leaf.sum()});
    EXPECT_TRUE(gradwire::autograd::get_gradients(context).at(leaf).equal(at::ones({2})));
  }
  gradwire::rpc::shutdown();
}

}  // namespace
