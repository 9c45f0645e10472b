#include "gradwire/collectives/group/backend_choice.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

// The result of `served_devices`, as text.
std::vector<std::string> served(const std::string& name) {
  std::vector<std::string> lines;
  for (const ServedDevice& each : served_devices(choose_backend(name).value())) {
    lines.push_back(
        absl::StrCat(c10::DeviceTypeName(each.type, true), " ", each.backend, each.staged ? " staged" : ""));
  }
  return lines;
}

using Lines = std::vector<std::string>;

TEST(BackendChoice, EmptyNameIsCpuAndTheBackendsOfAccelerators) {
  testing::use_local_backend(Backend::kCpu);
  EXPECT_EQ(to_string(choose_backend("").value()), "cpu");
  EXPECT_EQ(served(""), Lines({"cpu cpu"}));

  testing::use_local_backend(Backend::kNccl);
  EXPECT_EQ(to_string(choose_backend("").value()), "cpu and nccl");
  EXPECT_EQ(to_string(choose_backend("gloo").value()), "cpu");
  EXPECT_EQ(served(""), Lines({"cpu cpu", "cuda nccl"}));
  // CUDA tensors go through the memory of the host.
  EXPECT_EQ(served("cpu"), Lines({"cpu cpu", "cuda cpu staged"}));
  EXPECT_EQ(served("nccl"), Lines({"cuda nccl"}));
  EXPECT_EQ(choose_backend("mpi").status().code(), absl::StatusCode::kInvalidArgument);

  register_accelerator_backend({at::kXPU, "fast", &testing::make_local_backend});
  EXPECT_EQ(to_string(choose_backend("").value()), "cpu and nccl and fast");
  EXPECT_EQ(served(""), Lines({"cpu cpu", "cuda nccl", "xpu fast"}));
  EXPECT_EQ(served("nccl"), Lines({"cuda nccl"}));
}

TEST(BackendChoice, CombinedBackendsServeCpuTensorsByTheFirst) {
  testing::use_local_backend(Backend::kCpu);
  const BackendContext one{.store = std::make_shared<store::HashStore>(), .world_ranks = {0}};
  const BackendContext other{.store = std::make_shared<store::HashStore>(), .world_ranks = {0}};
  std::unique_ptr<GroupBackend> cuda = testing::make_local_backend(other).value();
  cuda->abort(absl::AbortedError("not for this tensor"));
  std::vector<DeviceBackend> backends;
  backends.push_back({at::kCPU, testing::make_local_backend(one).value()});
  backends.push_back({at::kCUDA, std::move(cuda)});
  const auto both = combine_backends(std::move(backends));
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
