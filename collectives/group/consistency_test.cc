#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/base/error.h"
#include "gradwire/collectives/group/operation_runner.h"
#include "gradwire/collectives/operations/operations.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"
#include "gradwire/collectives/testing/local_backend.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using ::testing::HasSubstr;
using testing::Ranks;

[[maybe_unused]] const bool consistency_uses_local_backend = (testing::use_local_backend(), true);

class Consistency : public ::testing::Test {
 protected:
  // Expects the same error on all ranks, and that the group stays usable.
  void expect_difference(const std::function<void(const Group& group)>& body, const std::string& part) {
    for (const absl::Status& result : ranks_.results(body)) {
      EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
      EXPECT_THAT(result.ToString(), HasSubstr(part));
    }
    ranks_.run([](const Group& group) { group->barrier(); });
  }

  Ranks ranks_{3, {.check_consistency = true}};
};

TEST_F(Consistency, EqualCallsPass) {
  ranks_.run([](const Group& group) {
    at::Tensor tensor = at::ones({2, 3});
    group->all_reduce(tensor);
    group->all_reduce_async(tensor, ReduceOp::kMax)->wait();
    group->broadcast(tensor, 1);
    group->all_to_all({at::zeros({0}), at::zeros({0}), at::zeros({0})},
                      {at::zeros({0}), at::zeros({0}), at::zeros({0})});
    group->monitored_barrier();
    if (group->rank() == 0) group->send(tensor, 1);
    if (group->rank() == 1) group->recv(tensor, 0);
    group->barrier();
  });
}

TEST_F(Consistency, OperationDiffers) {
  expect_difference(
      [](const Group& group) {
        at::Tensor tensor = at::ones({2});
        group->rank() == 1 ? group->barrier() : group->all_reduce(tensor);
      },
      "the ranks' calls differ: rank 1 called #0 barrier, rank 0 called #0 all_reduce Float[2] sum");
}

TEST_F(Consistency, ShapeDtypeRootOrReductionDiffers) {
  expect_difference(
      [](const Group& group) {
        at::Tensor tensor = at::ones({group->rank() == 2 ? 3 : 2, 4});
        group->all_reduce(tensor);
      },
      "rank 2 called #0 all_reduce Float[3, 4] sum");
  expect_difference(
      [](const Group& group) {
        at::Tensor tensor = at::ones({2}, group->rank() == 1 ? at::kInt : at::kFloat);
        group->all_reduce(tensor);
      },
      "rank 1 called #2 all_reduce Int[2]");
  expect_difference([](const Group& group) { group->broadcast(at::ones({2}), group->rank() == 1); },
                    "rank 1 called #4 broadcast Float[2] root 1, rank 0 called #4 broadcast Float[2] root 0");
  expect_difference(
      [](const Group& group) {
        group->all_reduce_async(at::ones({2}), group->rank() == 2 ? ReduceOp::kMax : ReduceOp::kMin)->wait();
      },
      "rank 2 called #6 all_reduce Float[2] max, rank 0 called #6 all_reduce Float[2] min");
}

TEST_F(Consistency, FactorDiffersFromNone) {
  expect_difference(
      [](const Group& group) {
        at::Tensor tensor = at::ones({2});
        group->all_reduce(tensor, group->rank() == 1 ? premul_sum(0.5) : ReduceOp::kSum);
      },
      "rank 1 called #0 all_reduce Float[2] premul_sum, rank 0 called #0 all_reduce Float[2] sum");
}

// Operations on one tensor and those on one tensor per GPU make their records with the same functions.
TEST(OperationRecord, NamesTheReductionOfAMultiDeviceOperation) {
  const OperationRecord record = record_of(Operation::kAllReduceMultigpu, at::ones({2}));
  EXPECT_EQ(describe(with_op(record, premul_sum(0.5))), "all_reduce_multigpu Float[2] premul_sum");
  EXPECT_EQ(describe(with_op(record, ReduceOp::kMax)), "all_reduce_multigpu Float[2] max");
}

TEST(OperationRecord, CountsTheIndicesAndValuesOfASparseTensor) {
  const at::Tensor dense = at::tensor({1.f, 0.f, 2.f});
  EXPECT_EQ(record_of(Operation::kAllReduce, dense).bytes, 3 * 4);
  EXPECT_EQ(record_of(Operation::kAllReduceSparse, dense.to_sparse()).bytes, 2 * (8 + 4));
  EXPECT_EQ(data_bytes(at::Tensor()), 0);
}

// The message shows only the first sizes, but later sizes are compared too.
TEST_F(Consistency, LaterSizesDiffer) {
  const std::vector<int64_t> shape = {1, 1, 1, 1, 1, 1, 2, 3};
  expect_difference(
      [&](const Group& group) {
        std::vector<int64_t> own = shape;
        if (group->rank() == 1) std::swap(own[6], own[7]);
        at::Tensor tensor = at::ones(own);
        group->all_reduce(tensor);
      },
      "rank 1 called #0 all_reduce Float[1, 1, 1, 1, 1, 1, ...: 8 dimensions, 6 elements; shape ");
  ranks_.run([&](const Group& group) {
    at::Tensor tensor = at::ones(shape);
    group->all_reduce(tensor);
  });
}

}  // namespace
}  // namespace gradwire::collectives
