#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gradwire/rpc/mesh/relay_tree.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TreePlan, EightPlacesWithTwoChildrenEach) {
  const TreePlan plan(8, 2);
  EXPECT_THAT(plan.children_of_root(), ElementsAre(0, 4));
  EXPECT_THAT(plan.children(0), ElementsAre(1, 2));
  EXPECT_THAT(plan.children(2), ElementsAre(3));
  EXPECT_THAT(plan.children(4), ElementsAre(5, 6));
  EXPECT_THAT(plan.children(6), ElementsAre(7));
  for (const std::size_t leaf : {1, 3, 5, 7}) EXPECT_THAT(plan.children(leaf), IsEmpty());
}

TEST(TreePlan, SmallNumbers) {
  EXPECT_THAT(TreePlan(0, 2).children_of_root(), IsEmpty());
  EXPECT_THAT(TreePlan(1, 2).children_of_root(), ElementsAre(0));
  EXPECT_THAT(TreePlan(2, 2).children_of_root(), ElementsAre(0, 1));
}

// The properties on which a broadcast relies, with the children collected independently of subtree_end().
TEST(TreePlan, EveryPlaceHasOneParentBeforeIt) {
  for (std::size_t fanout = 1; fanout <= 5; ++fanout) {
    for (std::size_t places = 1; places <= 70; ++places) {
      const TreePlan plan(places, fanout);
      std::vector<int> parents(places, 0);
      std::vector<std::size_t> sizes(places, 1);
      std::vector<std::size_t> depth(places, 1);
      for (const std::size_t child : plan.children_of_root()) ++parents[child];
      EXPECT_LE(plan.children_of_root().size(), fanout);
      for (std::size_t place = 0; place < places; ++place) {
        EXPECT_LE(plan.children(place).size(), fanout);
        for (const std::size_t child : plan.children(place)) {
          ASSERT_THAT(child, Gt(place));
          ++parents[child];
          depth[child] = depth[place] + 1;
        }
      }
      EXPECT_TRUE(std::all_of(parents.begin(), parents.end(), [](int count) { return count == 1; }))
          << places << " places, fanout " << fanout;
      for (std::size_t place = places; place-- > 0;) {
        for (const std::size_t child : plan.children(place)) sizes[place] += sizes[child];
        EXPECT_EQ(plan.subtree_end(place), place + sizes[place]);
      }
      // A tree of depth d has at least 2^(d-2) members if each place has two children.
      const std::size_t deepest = *std::max_element(depth.begin(), depth.end());
      if (fanout >= 2) EXPECT_LE(std::size_t{1} << (deepest - 1), places + 1);
    }
  }
}

}  // namespace
}  // namespace gradwire::rpc
