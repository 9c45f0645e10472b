#include "gradwire/data_parallel/buckets/bucket_plan.h"

#include <gtest/gtest.h>

namespace gradwire::data_parallel {
namespace {

std::vector<PlannedParameter> of_bytes(const std::vector<uint64_t>& bytes) {
  std::vector<PlannedParameter> parameters;
  for (uint64_t each : bytes) parameters.push_back({each, 0});
  return parameters;
}

TEST(BucketPlan, FirstBucketIsClosedEarlier) {
  EXPECT_EQ(plan_buckets(of_bytes({4, 4, 4, 4, 4}), reverse_order(5), {.first = 4, .others = 8}),
            (Buckets{{4}, {3, 2}, {1, 0}}));
}

TEST(BucketPlan, ParameterLargerThanTheCapIsNotSplit) {
  EXPECT_EQ(plan_buckets(of_bytes({1, 100, 1}), reverse_order(3), {.first = 10, .others = 10}),
            (Buckets{{2, 1}, {0}}));
}

TEST(BucketPlan, KindsHaveSeparateBucketsInTheOrderOfCompletion) {
  const std::vector<PlannedParameter> parameters = {{4, 0}, {4, 1}, {4, 0}, {4, 1}};
  EXPECT_EQ(plan_buckets(parameters, {0, 1, 2, 3}, {.first = 100, .others = 100}), (Buckets{{0, 2}, {1, 3}}));
  EXPECT_EQ(plan_buckets(parameters, {1, 0, 2, 3}, {.first = 100, .others = 100}), (Buckets{{0, 2}, {1, 3}}));
  EXPECT_EQ(plan_buckets(parameters, {3, 1, 0, 2}, {.first = 100, .others = 100}), (Buckets{{3, 1}, {0, 2}}));
}

TEST(BucketPlan, TinyCapGivesEachParameterItsOwnBucket) {
  EXPECT_EQ(plan_buckets(of_bytes({4, 4, 4}), {1, 2, 0}, {.first = 1, .others = 1}),
            (Buckets{{1}, {2}, {0}}));
}

TEST(BucketPlan, EmptyParametersAndEmptyList) {
  EXPECT_EQ(plan_buckets(of_bytes({0, 0}), {0, 1}, {.first = 8, .others = 8}), (Buckets{{0, 1}}));
  EXPECT_EQ(plan_buckets({}, {}, {}), Buckets{});
}

TEST(BucketPlan, RecognizesPermutations) {
  EXPECT_TRUE(is_permutation_of_all({2, 0, 1}, 3));
  EXPECT_FALSE(is_permutation_of_all({2, 0, 2}, 3));
  EXPECT_FALSE(is_permutation_of_all({0, 1}, 3));
  EXPECT_FALSE(is_permutation_of_all({0, 1, 3}, 3));
  EXPECT_FALSE(is_permutation_of_all({0, 1, -1}, 3));
}

}  // namespace
}  // namespace gradwire::data_parallel
