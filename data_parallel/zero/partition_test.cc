#include "gradwire/data_parallel/zero/partition.h"

#include <gtest/gtest.h>

namespace gradwire::data_parallel {
namespace {

TEST(Partition, LargeParametersAreSpreadFirst) {
  std::vector<int64_t> load(2);
  EXPECT_EQ(partition_parameters({1, 8, 3, 7, 2}, load), (std::vector<int>{0, 0, 1, 1, 0}));
  EXPECT_EQ(load, (std::vector<int64_t>{11, 10}));
  // The next group of parameters continues with the loads.
  EXPECT_EQ(partition_parameters({1, 5}, load), (std::vector<int>{0, 1}));
}

TEST(Partition, MoreRanksThanParameters) {
  std::vector<int64_t> load(4);
  EXPECT_EQ(partition_parameters({5, 5}, load), (std::vector<int>{0, 1}));
  EXPECT_TRUE(partition_parameters({}, load).empty());
}

}  // namespace
}  // namespace gradwire::data_parallel
