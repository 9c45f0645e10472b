#include "gradwire/collectives/group/backend_choice.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

TEST(BackendChoice, EmptyNameIsCpuAndAlsoNcclIfBuiltIn) {
  testing::use_local_backend(Backend::kCpu);
  EXPECT_EQ(to_string(choose_backend("").value()), "cpu");
  ArgumentChecks::Group group;
  EXPECT_FALSE(describe_devices(choose_backend("").value(), group));
  EXPECT_TRUE(group.takes_cpu);
  EXPECT_FALSE(group.takes_cuda);

  testing::use_local_backend(Backend::kNccl);
  EXPECT_EQ(to_string(choose_backend("").value()), "cpu and nccl");
  EXPECT_EQ(to_string(choose_backend("gloo").value()), "cpu");
  EXPECT_FALSE(describe_devices(choose_backend("").value(), group));
  EXPECT_TRUE(group.takes_cpu && group.takes_cuda);
  // CUDA tensors go through the memory of the host.
  EXPECT_TRUE(describe_devices(choose_backend("cpu").value(), group));
  EXPECT_TRUE(group.takes_cpu && group.takes_cuda);
  EXPECT_FALSE(describe_devices(choose_backend("nccl").value(), group));
  EXPECT_TRUE(!group.takes_cpu && group.takes_cuda);
  EXPECT_EQ(choose_backend("mpi").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BackendChoice, CombinedBackendsServeCpuTensorsByTheFirst) {
  testing::use_local_backend(Backend::kCpu);
  const BackendContext one{.store = std::make_shared<store::HashStore>(), .world_ranks = {0}};
  const BackendContext other{.store = std::make_shared<store::HashStore>(), .world_ranks = {0}};
  std::unique_ptr<GroupBackend> cuda = testing::make_local_backend(other).value();
  cuda->abort(absl::AbortedError("not for this tensor"));
  const auto both = combine_backends(testing::make_local_backend(one).value(), std::move(cuda));
  const absl::Time deadline = absl::InfiniteFuture();
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(both->all_reduce(tensor, ReduceOp::kSum, deadline).ok());
  EXPECT_TRUE(both->broadcast(tensor, 0, deadline).ok());
  EXPECT_TRUE(both->all_gather_into_tensor(tensor, at::ones({2}), 1, deadline).ok());
  EXPECT_TRUE(both->reduce_scatter_tensor(tensor, at::ones({2}), ReduceOp::kSum, 1, deadline).ok());
  EXPECT_TRUE(both->barrier_on({}, deadline).ok());
  EXPECT_FALSE(both->barrier_on({0}, deadline).ok());
  EXPECT_EQ(both->take_enqueued(), nullptr);
  EXPECT_TRUE(both->send(tensor, 0, 0, deadline).result().ok());
  EXPECT_EQ(both->receive(tensor, -1, 0, deadline).wait(), 0);
}

}  // namespace
}  // namespace gradwire::collectives
