#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "gradwire/gradwire.h"

namespace {

int64_t twice(int64_t x) { return 2 * x; }
GRADWIRE_RPC(twice)

// The public names of data_parallel/ are also visible in their earlier namespace.
namespace earlier_names {
using gradwire::collectives::allreduce_hook;
using gradwire::collectives::average_tensors;
using gradwire::collectives::bf16_compress_hook;
using gradwire::collectives::bf16_compress_wrapper;
using gradwire::collectives::CommHook;
using gradwire::collectives::convert_sync_batchnorm;
using gradwire::collectives::DistributedDataParallel;
using gradwire::collectives::DistributedDataParallelOptions;
using gradwire::collectives::DistributedSampler;
using gradwire::collectives::DistributedSamplerOptions;
using gradwire::collectives::fp16_compress_hook;
using gradwire::collectives::fp16_compress_wrapper;
using gradwire::collectives::GradBucket;
using gradwire::collectives::HierarchicalModelAverager;
using gradwire::collectives::hook_with_zero_step;
using gradwire::collectives::hook_with_zero_step_interleaved;
using gradwire::collectives::HookStep;
using gradwire::collectives::Join;
using gradwire::collectives::Joinable;
using gradwire::collectives::JoinHook;
using gradwire::collectives::JoinOptions;
using gradwire::collectives::make_comm_hook;
using gradwire::collectives::MixedPrecision;
using gradwire::collectives::ModelAverager;
using gradwire::collectives::noop_hook;
using gradwire::collectives::NoSyncGuard;
using gradwire::collectives::OptimizerInBackward;
using gradwire::collectives::PeriodicModelAverager;
using gradwire::collectives::PostLocalSgdHook;
using gradwire::collectives::PostLocalSgdOptimizer;
using gradwire::collectives::PostLocalSgdOptions;
using gradwire::collectives::PowerSgdHook;
using gradwire::collectives::PowerSgdOptions;
using gradwire::collectives::quantization_perchannel_hook;
using gradwire::collectives::quantization_pertensor_hook;
using gradwire::collectives::ShardedOptimizer;
using gradwire::collectives::SyncBatchNorm;
using gradwire::collectives::SyncBatchNormImpl;
using gradwire::collectives::ZeroRedundancyOptimizer;
}  // namespace earlier_names
static_assert(std::is_same_v<earlier_names::Join, gradwire::data_parallel::Join>);

// The header gradwire/gradwire.h and its target contain every part of the library.
TEST(Umbrella, ContainsEveryPart) {
  auto store = std::make_shared<gradwire::store::HashStore>();
  gradwire::collectives::init_process_group({.world_size = 1, .rank = 0, .store = store});
  at::Tensor tensor = at::ones({2});
  gradwire::collectives::all_reduce(tensor);
  EXPECT_EQ(tensor.sum().item<float>(), 2);
  EXPECT_EQ(gradwire::data_parallel::DistributedSampler(3).size(), 3u);
  {
    const std::vector<at::Tensor> parameters = {at::ones({2}).requires_grad_()};
    gradwire::data_parallel::ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
        parameters, torch::optim::SGDOptions(0.1));
    const auto reduction = gradwire::data_parallel::allreduce_hook(gradwire::collectives::world());
    EXPECT_NE(gradwire::data_parallel::hook_with_zero_step(reduction, optimizer), nullptr);
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
