// Tests the world of a process, and the functions that act on it.
#include "gradwire/collectives/collectives.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "gradwire/base/error.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::collectives {
namespace {

using ::testing::HasSubstr;

[[maybe_unused]] const bool collectives_use_local_backend = (testing::use_local_backend(), true);

ProcessGroupOptions alone() {
  return {.world_size = 1, .rank = 0, .store = std::make_shared<store::HashStore>()};
}

TEST(Collectives, NamesOfBackends) {
  EXPECT_TRUE(is_available());
  EXPECT_FALSE(is_mpi_available());
  EXPECT_FALSE(is_nccl_available());
  for (const char* name : {"cpu", "Gloo", "TCP"}) EXPECT_EQ(parse_backend(name), Backend::kCpu);
  EXPECT_EQ(to_string(Backend::kNccl), "nccl");
  try {
    parse_backend("smoke");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("available backends: cpu (also gloo, tcp)"));
  }
  EXPECT_EQ(status_of([] { parse_backend("nccl"); }).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Collectives, WorldMayBeMadeAgainAfterItWasDestroyed) {
  EXPECT_FALSE(is_initialized());
  destroy_process_group();
  EXPECT_EQ(status_of([] { barrier(); }).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status_of([] { get_rank(); }).code(), absl::StatusCode::kFailedPrecondition);
  for (int round = 0; round < 2; ++round) {
    init_process_group(alone());
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(status_of([] { init_process_group(alone()); }).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(get_rank(), 0);
    EXPECT_EQ(get_world_size(), 1);
    EXPECT_EQ(get_backend(), Backend::kCpu);
    const Group group = new_group();
    EXPECT_EQ(get_rank(group), 0);
    destroy_process_group(group);
    EXPECT_TRUE(is_initialized());
    destroy_process_group();
    destroy_process_group();
    EXPECT_FALSE(is_initialized());
  }
}

TEST(Collectives, FailedInitLeavesNoWorld) {
  ProcessGroupOptions options = alone();
  options.rank = 7;
  EXPECT_EQ(status_of([&] { init_process_group(options); }).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(is_initialized());
}

TEST(Collectives, FunctionsActOnTheWorld) {
  init_process_group(alone());
  at::Tensor tensor = at::ones({2});
  Tensors list = {at::zeros({2})};
  broadcast(tensor, 0);
  reduce(tensor, 0);
  all_reduce(tensor, ReduceOp::kMax);
  gather(tensor, list);
  EXPECT_TRUE(list[0].equal(tensor));
  all_gather(list, tensor);
  scatter(tensor, list);
  reduce_scatter(tensor, list, premul_sum(2));
  EXPECT_TRUE(tensor.equal(at::full({2}, 2.0)));
  all_to_all(list, {tensor});
  barrier();
  barrier({0});
  monitored_barrier(absl::Seconds(10));
  all_gather_into_tensor(tensor, at::ones({2}));
  reduce_scatter_tensor(tensor, at::ones({2}));
  all_to_all_single(tensor, at::ones({2}), {2}, {2});
  for (const WorkPtr& work :
       {broadcast_async(tensor, 0), reduce_async(tensor, 0), all_reduce_async(tensor),
        gather_async(tensor, list), all_gather_async(list, tensor), scatter_async(tensor, list),
        reduce_scatter_async(tensor, list), all_to_all_async(list, {tensor}), barrier_async(),
        all_gather_into_tensor_async(tensor, at::ones({2})),
        reduce_scatter_tensor_async(tensor, at::ones({2})), all_to_all_single_async(tensor, at::ones({2}))}) {
    work->wait();
  }
  const WorkPtr received = irecv(tensor);
  isend(at::full({2}, 9.0), 0)->wait();
  EXPECT_EQ(received->source_rank(), 0);
  EXPECT_TRUE(tensor.equal(at::full({2}, 9.0)));
  send(at::full({2}, 8.0), 0, 3);
  EXPECT_EQ(recv(tensor, kAnySource, 3), 0);
  std::string text = "text";
  broadcast_object(text, 0);
  EXPECT_EQ(status_of([&] { all_reduce_multigpu({tensor}); }).code(), absl::StatusCode::kInvalidArgument);
  const Group same = new_group({0}, {.timeout = absl::Seconds(5), .backend = "gloo"});
  all_reduce(tensor, ReduceOp::kSum, same);
  destroy_process_group();
}

TEST(Collectives, EnvironmentIsTheDefault) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "0", 1);
  setenv("RANK", "0", 1);
  unsetenv("WORLD_SIZE");
  try {
    init_process_group();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("WORLD_SIZE"));
  }
}

TEST(CollectivesDeathTest, ProcessMayExitWithAWorld) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        init_process_group(alone());
        all_reduce_async(at::ones({2}))->wait();
        irecv(at::ones({2}));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gradwire::collectives
