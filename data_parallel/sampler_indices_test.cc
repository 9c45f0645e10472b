#include "gradwire/data_parallel/sampler_indices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace gradwire::data_parallel {
namespace {

using Indices = std::vector<std::size_t>;

// The indices of all ranks, in the order before they were divided among the ranks.
Indices indices_of_all(SamplerPlan plan, uint64_t epoch) {
  Indices all(samples_of_each_rank(plan) * plan.num_replicas);
  for (plan.rank = 0; plan.rank < plan.num_replicas; ++plan.rank) {
    const Indices mine = sampler_indices(plan, epoch);
    EXPECT_EQ(mine.size(), samples_of_each_rank(plan));
    for (std::size_t i = 0; i < mine.size(); ++i) all[i * plan.num_replicas + plan.rank] = mine[i];
  }
  return all;
}

TEST(SamplerIndices, RanksPartitionThePaddedOrTruncatedSet) {
  for (std::size_t size : {0, 1, 2, 3, 7, 8, 9, 100}) {
    for (std::size_t replicas : {1, 2, 3, 4, 8}) {
      for (bool shuffle : {false, true}) {
        for (bool drop_last : {false, true}) {
          const SamplerPlan plan{size, replicas, 0, shuffle, 5, drop_last};
          SCOPED_TRACE(std::to_string(size) + " over " + std::to_string(replicas));
          const Indices all = indices_of_all(plan, 3);
          const std::size_t rest = size % replicas;
          EXPECT_EQ(all.size(), drop_last ? size - rest : rest == 0 ? size : size + replicas - rest);
          // Each index occurs once; then the padding repeats the indices from the beginning.
          Indices once(all.begin(), all.begin() + std::min(all.size(), size));
          for (std::size_t i = size; i < all.size(); ++i) EXPECT_EQ(all[i], all[i - size]);
          std::sort(once.begin(), once.end());
          EXPECT_EQ(std::unique(once.begin(), once.end()), once.end());
          EXPECT_TRUE(once.empty() || once.back() < size);
        }
      }
    }
  }
}

TEST(SamplerIndices, WithoutShufflingIndicesAreInOrder) {
  EXPECT_EQ(sampler_indices({7, 3, 1, false, 0, false}, 9), (Indices{1, 4, 0}));
  EXPECT_EQ(sampler_indices({7, 3, 1, false, 0, true}, 9), (Indices{1, 4}));
}

TEST(SamplerIndices, PaddingRepeatsASmallSetMoreThanOnce) {
  EXPECT_EQ(indices_of_all({2, 5, 0, false, 0, false}, 0), (Indices{0, 1, 0, 1, 0}));
}

TEST(SamplerIndices, PermutationDependsOnlyOnSeedPlusEpoch) {
  const SamplerPlan plan{100, 2, 0, true, 5, false};
  EXPECT_EQ(indices_of_all(plan, 3), indices_of_all(plan, 3));
  EXPECT_NE(indices_of_all(plan, 3), indices_of_all(plan, 4));
  EXPECT_EQ(indices_of_all(plan, 4), indices_of_all({100, 2, 0, true, 6, false}, 3));
  EXPECT_EQ(indices_of_all(plan, 3), indices_of_all({100, 4, 0, true, 5, false}, 3));
  Indices sorted = indices_of_all(plan, 3);
  EXPECT_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
}

TEST(SamplerIndices, PermutationIsTheSameOnEveryMachine) {
  EXPECT_EQ(sampler_indices({8, 1, 0, true, 1, false}, 0), (Indices{4, 6, 3, 5, 1, 7, 2, 0}));
}

TEST(SamplerIndices, EveryIndexIsEquallyLikelyToBeFirst) {
  std::vector<int> first(5);
  for (uint64_t epoch = 0; epoch < 5000; ++epoch)
    ++first[sampler_indices({5, 1, 0, true, 0, false}, epoch)[0]];
  for (int count : first) EXPECT_NEAR(count, 1000, 150);
}

}  // namespace
}  // namespace gradwire::data_parallel
