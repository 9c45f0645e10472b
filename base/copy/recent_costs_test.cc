#include <gtest/gtest.h>

#include "gradwire/base/copy/copy_choice.h"

namespace gradwire {
namespace {

RecentCosts recent(std::initializer_list<double> costs) {
  RecentCosts result;
  for (const double cost : costs) result.add(cost);
  return result;
}

TEST(RecentCosts, LargestDoesNotCount) {
  EXPECT_EQ(recent({7}).expected(), 7);
  EXPECT_EQ(recent({9, 2}).expected(), 2);
  EXPECT_EQ(recent({4, 9, 2}).expected(), 3);
  EXPECT_EQ(recent({10, 1000, 20, 30, 40}).expected(), 25);
}

TEST(RecentCosts, OldCostsAreForgotten) {
  EXPECT_EQ(recent({1, 1, 1, 1, 1, 8, 8, 8, 8, 8}).expected(), 8);
  EXPECT_EQ(recent({1, 1, 1, 1, 1, 5, 9}).expected(), 2);
}

TEST(RecentCosts, ClearForgetsAll) {
  RecentCosts costs = recent({1, 1, 1});
  costs.clear();
  EXPECT_EQ(costs.count(), 0u);
  costs.add(4);
  EXPECT_EQ(costs.count(), 1u);
  EXPECT_EQ(costs.expected(), 4);
}

}  // namespace
}  // namespace gradwire
