#include "gradwire/collectives/group/rank_names.h"

#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/match.h"

namespace gradwire::collectives {
namespace {

TEST(RankNames, RankInTheWorldIsGivenIfItDiffers) {
  EXPECT_EQ(name_rank(1, {0, 1}), "rank 1");
  EXPECT_EQ(name_rank(1, {0, 3}), "rank 1 (rank 3 of the world)");
}

TEST(RankNames, ErrorsExplainOnlyNumbersThatDiffer) {
  const absl::Status error = absl::UnavailableError("rank 1 is lost");
  EXPECT_EQ(explain_ranks(error, {0, 1}), error);
  EXPECT_EQ(explain_ranks(absl::UnavailableError("backend not available"), {1, 3}).message(),
            "backend not available");
  EXPECT_TRUE(explain_ranks(absl::OkStatus(), {1, 3}).ok());
  const absl::Status explained = explain_ranks(error, {1, 3});
  EXPECT_EQ(explained.code(), error.code());
  EXPECT_EQ(explained.message(),
            "rank 1 is lost [these are ranks of the group; its ranks in the world are 1, 3]");
}

TEST(RankNames, LongListsAreCutOff) {
  std::vector<int> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 1);
  EXPECT_TRUE(
      absl::EndsWith(explain_ranks(absl::AbortedError("rank 0"), ranks).message(), "14, 15, 16, ...]"));
}

}  // namespace
}  // namespace gradwire::collectives
