#include "gradwire/data_parallel/hooks/sparse_average.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/test_modules.h"

namespace gradwire::collectives {
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

// A peer that reports a number of entries which no tensor of this shape has.
TEST(SparseAverage, AMalformedNumberOfEntriesIsRefused) {
  for (const int64_t reported : {int64_t{-1}, int64_t{6}, int64_t{1} << 60}) {
    const Ranks ranks(2, kOptions);
    const std::vector<absl::Status> results = ranks.results([&](const Group& group) {
      if (group->rank() == 1) {
        at::Tensor counts = at::zeros({2}, at::kLong);
        group->all_gather_into_tensor(counts, at::full({1}, reported, at::kLong));
        return;
      }
      run(average_sparse(*group, at::ones({5}).to_sparse(), 2));
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument) << results[0];
    EXPECT_TRUE(absl::StrContains(results[0].message(), "rank 1")) << results[0];
  }
}

}  // namespace
}  // namespace gradwire::collectives
