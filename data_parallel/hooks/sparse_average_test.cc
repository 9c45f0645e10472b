#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::data_parallel {
namespace {

at::Tensor run(HookStep step) {
  while (!step.ended()) step = std::move(step).advance();
  return step.result();
}

TEST(SparseAverage, RanksHaveDifferentNumbersOfEntries) {
  const Ranks ranks(3, kOptions);
  ranks.run([](const Group& group) {
    // Rank r has the entries 0, ..., r - 1, the first one twice.
    const int64_t entries = group->rank() == 0 ? 0 : group->rank() + 1;
    const at::Tensor indices = (at::arange(entries) - 1).clamp_min(0).unsqueeze(0);
    const at::Tensor values = at::ones({entries, 2}, at::kDouble);
    const at::Tensor average =
        run(average_sparse(*group, at::sparse_coo_tensor(indices, values, {5, 2}), /*divisor=*/2));
    EXPECT_TRUE(average.is_coalesced());
    at::Tensor want = at::zeros({5, 2}, at::kDouble);
    want[0] = 2;
    want[1] = 0.5;
    EXPECT_TRUE(at::equal(average.to_dense(), want)) << average;
  });
}

TEST(SparseAverage, NoRankHasEntries) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const at::Tensor none = at::sparse_coo_tensor(at::zeros({1, 0}, at::kLong), at::zeros({0}), {5});
    EXPECT_EQ(run(average_sparse(*group, none, 2))._nnz(), 0);
  });
}

TEST(SparseAverage, GradientDoesNotChange) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const at::Tensor gradient = at::ones({5}).to_sparse();
    const at::Tensor average = run(average_sparse(*group, gradient, 4));
    EXPECT_TRUE(at::equal(average.to_dense(), at::full({5}, 0.5))) << average;
    EXPECT_TRUE(at::equal(gradient.to_dense(), at::ones({5}))) << gradient;
  });
}

// The sum of the two ranks is larger than a half can be, the average is not.
TEST(SparseAverage, LargeHalvesDoNotOverflow) {
  const Ranks ranks(2, kOptions);
  ranks.run([](const Group& group) {
    const at::Tensor gradient = at::full({3}, 40000.0, at::kHalf).to_sparse();
    const at::Tensor average = run(average_sparse(*group, gradient, 2));
    EXPECT_TRUE(at::equal(average.to_dense(), at::full({3}, 40000.0, at::kHalf))) << average;
  });
}

TEST(SparseAverage, RankWithAnotherShapeIsNamed) {
  const Ranks ranks(2, kOptions);
  const std::vector<absl::Status> results = ranks.results(
      [&](const Group& group) { run(average_sparse(*group, at::ones({5 + group->rank()}).to_sparse(), 2)); });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_TRUE(absl::StrContains(result.message(), "rank 1 has Float[6]")) << result;
  }
}

}  // namespace
}  // namespace gradwire::data_parallel
