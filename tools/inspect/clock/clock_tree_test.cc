#include "gradwire/tools/inspect/clock/clock_tree.h"

#include <gtest/gtest.h>

namespace gradwire::inspect {
namespace {

ClockFit fit(double offset, double error) { return ClockFit(0, offset, 0, error); }

TEST(ClockTree, ReferenceHasNoError) {
  const auto clocks = align_clocks(1, {}, 0);
  ASSERT_EQ(clocks.size(), 1u);
  EXPECT_EQ(clocks[0]->map(17), 17);
  EXPECT_EQ(clocks[0]->error(), 0);
}

TEST(ClockTree, UsesAFitInBothDirections) {
  const auto forward = align_clocks(2, {{{0, 1}, fit(100, 5)}}, 1);
  EXPECT_EQ(forward[0]->map(0), 100);
  const auto back = align_clocks(2, {{{0, 1}, fit(100, 5)}}, 0);
  EXPECT_EQ(back[1]->map(100), 0);
  EXPECT_EQ(back[1]->error(), 5);
}

TEST(ClockTree, PrefersTheWayWithTheSmallestError) {
  const ClockFits fits = {
      {{0, 1}, fit(10, 100)}, {{0, 2}, fit(7, 20)}, {{2, 1}, fit(2, 30)}, {{3, 1}, fit(1, 1)}};
  const auto clocks = align_clocks(4, fits, 1);
  EXPECT_EQ(clocks[0]->map(0), 9);
  EXPECT_EQ(clocks[0]->error(), 50);
  EXPECT_EQ(clocks[2]->map(0), 2);
  EXPECT_EQ(clocks[3]->map(0), 1);
}

TEST(ClockTree, ClockWithoutAFitStaysUnknown) {
  const auto clocks = align_clocks(4, {{{0, 1}, fit(1, 1)}, {{2, 3}, fit(1, 1)}}, 0);
  EXPECT_TRUE(clocks[1]);
  EXPECT_FALSE(clocks[2]);
  EXPECT_FALSE(clocks[3]);
}

TEST(ClockTree, IgnoresNumbersOfUnknownClocks) {
  const auto clocks = align_clocks(2, {{{0, 7}, fit(1, 1)}, {{1, 1}, fit(1, 1)}}, 0);
  EXPECT_FALSE(clocks[1]);
  const auto none = align_clocks(2, {}, 9);
  EXPECT_FALSE(none[0] || none[1]);
}

}  // namespace
}  // namespace gradwire::inspect
