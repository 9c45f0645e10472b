#include <gtest/gtest.h>

#include <random>

#include "gradwire/tools/inspect/trace/chrome_trace.h"

namespace gradwire::inspect {
namespace {

using Periods = std::vector<std::pair<int64_t, int64_t>>;

TEST(Lanes, PeriodsThatFollowEachOtherShareALane) {
  EXPECT_EQ(assign_lanes({{0, 10}, {10, 20}, {25, 30}}), (std::vector<std::size_t>{0, 0, 0}));
}

TEST(Lanes, PeriodsThatOverlapHaveLanesOfTheirOwn) {
  EXPECT_EQ(assign_lanes({{0, 10}, {5, 20}, {10, 12}, {11, 30}}), (std::vector<std::size_t>{0, 1, 0, 2}));
}

TEST(Lanes, OrderOfTheInputDoesNotMatter) {
  EXPECT_EQ(assign_lanes({{11, 30}, {10, 12}, {5, 20}, {0, 10}}), (std::vector<std::size_t>{2, 0, 1, 0}));
}

TEST(Lanes, NoPeriods) { EXPECT_TRUE(assign_lanes({}).empty()); }

TEST(Lanes, UsesAsManyLanesAsPeriodsOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    Periods periods;
    for (int i = 0; i < 60; ++i) {
      const auto begin = static_cast<int64_t>(random() % 1000);
      periods.emplace_back(begin, begin + 1 + static_cast<int64_t>(random() % 100));
    }
    const std::vector<std::size_t> lanes = assign_lanes(periods);
    std::size_t most = 0;
    for (int64_t time = 0; time < 1100; ++time) {
      std::vector<bool> taken(periods.size(), false);
      std::size_t overlapping = 0;
      for (std::size_t i = 0; i < periods.size(); ++i) {
        if (periods[i].first > time || periods[i].second <= time) continue;
        ASSERT_FALSE(taken[lanes[i]]) << "lane " << lanes[i] << " at " << time;
        taken[lanes[i]] = true;
        ++overlapping;
      }
      most = std::max(most, overlapping);
    }
    for (const std::size_t lane : lanes) EXPECT_LT(lane, most);
  }
}

}  // namespace
}  // namespace gradwire::inspect
