// Half and bfloat16 are combined in float and rounded once, over shared memory and over messages.
#include "gradwire/collectives/cpu/wide/wide_reductions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "gradwire/collectives/process_group.h"
#include "gradwire/collectives/testing/group.h"

namespace gradwire::collectives {
namespace {

using testing::Group;
using testing::Ranks;
using Tensors = std::vector<at::Tensor>;

constexpr int kRanks = 5;

// Positive values between 0.5 and 1.5 that use all bits of the dtype, different for each rank.
at::Tensor values(int rank, int64_t count, at::ScalarType dtype) {
  const at::Tensor places = at::arange(count, at::kDouble);
  return ((places * 0.6180339887 + 0.37 * rank).remainder(1.0) + 0.5).to(dtype);
}

// The result without rounding.
at::Tensor exact(int64_t count, at::ScalarType dtype, ReduceOp op) {
  Tensors all;
  for (int rank = 0; rank < kRanks; ++rank) all.push_back(values(rank, count, dtype).to(at::kDouble));
  if (op == ReduceOp::kProduct) return at::prod(at::stack(all), 0);
  const at::Tensor sum = at::sum(at::stack(all), 0);
  return op == ReduceOp::kAvg ? sum / kRanks : sum;
}

// The largest error of one rounding, relative to the value, with some room for the float arithmetic.
double one_rounding(at::ScalarType dtype) { return (dtype == at::kHalf ? 1.0 / 2048 : 1.0 / 256) * 1.001; }

bool is_rounded_once(const at::Tensor& got, const at::Tensor& wanted, at::ScalarType dtype) {
  if (got.numel() == 0) return true;
  const at::Tensor error = at::abs(got.to(at::kDouble) - wanted) / at::abs(wanted);
  return error.max().item<double>() <= one_rounding(dtype);
}

class WideReductions : public ::testing::TestWithParam<const char*> {
 protected:
  static ProcessGroupOptions options() { return {.options = {{"shared_memory", GetParam()}}}; }
};

TEST_P(WideReductions, ResultsAreRoundedOnce) {
  Ranks ranks(kRanks, options());
  ranks.run([](const Group& group) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
        // Short, and long with some elements that do not fill a part of every rank.
        for (const int64_t count : {0, 1, 33, 5000, 100'003}) {
          const std::string what =
              c10::str(to_string(op), " of ", count, " ", c10::toString(dtype), " on rank ", group->rank());
          const at::Tensor wanted = exact(count, dtype, op);
          at::Tensor tensor = values(group->rank(), count, dtype);
          group->all_reduce(tensor, op);
          EXPECT_TRUE(is_rounded_once(tensor, wanted, dtype)) << "all_reduce " << what;
          tensor = values(group->rank(), count, dtype);
          group->reduce(tensor, 3, op);
          if (group->rank() == 3) EXPECT_TRUE(is_rounded_once(tensor, wanted, dtype)) << "reduce " << what;
          if (group->rank() != 3) EXPECT_TRUE(tensor.equal(values(group->rank(), count, dtype)));
          at::Tensor output = at::zeros({count}, dtype);
          const Tensors list(kRanks, values(group->rank(), count, dtype));
          group->reduce_scatter(output, list, op);
          EXPECT_TRUE(is_rounded_once(output, wanted, dtype)) << "reduce_scatter " << what;
          group->reduce_scatter_tensor(output, at::cat(list), op);
          EXPECT_TRUE(is_rounded_once(output, wanted, dtype)) << "reduce_scatter_tensor " << what;
        }
      }
    }
  });
}

TEST_P(WideReductions, AllRanksGetTheSameBits) {
  Ranks ranks(kRanks, options());
  for (const int64_t count : {77, 90'001}) {
    Tensors results(kRanks);
    ranks.run([&](const Group& group) {
      at::Tensor tensor = values(group->rank(), count, at::kBFloat16);
      group->all_reduce(tensor);
      results[static_cast<std::size_t>(group->rank())] = tensor;
    });
    for (const at::Tensor& result : results) EXPECT_TRUE(result.equal(results[0]));
  }
}

// The sum of the values is more than half can hold, their average is not.
TEST_P(WideReductions, AverageOfLargeValuesDoesNotOverflow) {
  for (const int size : {2, 4}) {
    Ranks ranks(size, options());
    ranks.run([](const Group& group) {
      at::Tensor tensor = at::full({3}, 60000.0, at::kHalf);
      group->all_reduce(tensor, ReduceOp::kAvg);
      EXPECT_TRUE(tensor.equal(at::full({3}, 60000.0, at::kHalf))) << tensor;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, WideReductions, ::testing::Values("on", "off"));

// The bound above separates one rounding from several.
TEST(WideReductionsBound, RoundingEachPartialSumIsWorse) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor sum = values(0, 5000, dtype);
    for (int rank = 1; rank < kRanks; ++rank) sum = sum + values(rank, 5000, dtype);
    EXPECT_FALSE(is_rounded_once(sum, exact(5000, dtype, ReduceOp::kSum), dtype));
  }
}

}  // namespace
}  // namespace gradwire::collectives
