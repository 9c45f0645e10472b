#include "gradwire/data_parallel/arrangement/cap_tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace gradwire::data_parallel {
namespace {

// Runs the trials; each pass of candidate i takes milliseconds[i], and the first one a second more.
CapTuner tried(const std::vector<int64_t>& milliseconds) {
  std::vector<uint64_t> candidates;
  for (std::size_t i = 0; i < milliseconds.size(); ++i) candidates.push_back(100 + i);
  CapTuner tuner(std::move(candidates));
  for (std::size_t i = 0; i < milliseconds.size(); ++i) {
    EXPECT_EQ(tuner.cap(), 100 + i);
    for (int pass = 0; pass < CapTuner::kPasses; ++pass) {
      EXPECT_TRUE(tuner.trying());
      EXPECT_FALSE(tuner.advance());
      // The fastest pass counts, so a slow one in between has no effect.
      const int64_t more = pass == 0 ? 1000 : pass == 2 ? 500 : 0;
      tuner.add(absl::Milliseconds(milliseconds[i] + more));
    }
    EXPECT_EQ(tuner.advance(), i + 1 < milliseconds.size());
  }
  EXPECT_FALSE(tuner.trying());
  EXPECT_TRUE(tuner.measured());
  return tuner;
}

TEST(CapTuner, TheFastestCandidateWins) {
  CapTuner tuner = tried({100, 90, 80, 85});
  EXPECT_EQ(tuner.fastest(), (std::vector<double>{0.1, 0.09, 0.08, 0.085}));
  tuner.choose(tuner.fastest());
  EXPECT_EQ(tuner.cap(), 102u);
  EXPECT_FALSE(tuner.measured());
  EXPECT_FALSE(tuner.trying());
  EXPECT_FALSE(tuner.advance());
}

TEST(CapTuner, TheFirstCandidateStaysUnlessAnotherIsClearlyBetter) {
  CapTuner tuner = tried({100, 96, 99});
  tuner.choose(tuner.fastest());
  EXPECT_EQ(tuner.cap(), 100u);
}

TEST(CapTuner, TheTimesOfTheSlowestRankDecide) {
  CapTuner tuner = tried({100, 50});
  tuner.choose({0.2, 0.3});
  EXPECT_EQ(tuner.cap(), 100u);
}

TEST(CapTuner, MalformedTimesFromAPeerChooseTheFirstCandidate) {
  CapTuner tuner = tried({100, 50, 50});
  tuner.choose({std::nan(""), std::nan(""), INFINITY});
  EXPECT_EQ(tuner.cap(), 100u);
}

TEST(CapTuner, PassesAfterATrialAreNotCounted) {
  CapTuner tuner = tried({100});
  tuner.add(absl::Milliseconds(1));
  EXPECT_EQ(tuner.fastest(), std::vector<double>{0.1});
}

}  // namespace
}  // namespace gradwire::data_parallel
