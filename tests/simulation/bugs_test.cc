#include <iostream>
#include <string>
#include <string_view>

#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/instrumented.h"
#include "gradwire/tests/simulation/world.h"
#include "gtest/gtest.h"

// The simulator is worth what it notices: each mistake that the machines can be built with must be found.
namespace gradwire::simulation {
namespace {

// Each must be found within so many schedules.
constexpr uint64_t kMost = 50'000;
// After the first that finds it, so many more are tried for one with a shorter trace.
constexpr uint64_t kForShorter = kInstrumented ? 0 : 2000;

TEST(DeliberateBugs, EachIsFound) {
  for (const simulation::Bug& bug : simulation::all_bugs()) {
    const std::string_view name = bug.name;
    simulation::chosen_bug = name;
    uint64_t first = 0, shortest = 0, fewest = ~uint64_t{0};
    std::string what;
    for (uint64_t seed = 1; seed <= (first == 0 ? kMost : first + kForShorter); ++seed) {
      World world(seed, nullptr, nullptr);
      const std::string& violation = world.run();
      if (violation.empty()) continue;
      if (first == 0) first = seed;
      if (world.steps() >= fewest) continue;
      fewest = world.steps();
      shortest = seed;
      what = violation;
    }
    if (first == 0) {
      ADD_FAILURE() << name << " was not found in " << kMost << " schedules";
      continue;
    }
    std::cout << name << ": found by seed " << first << "; seed " << shortest << " after " << fewest
              << " events: " << what << "\n    bazel run //tests/simulation:replay -- --seed=" << shortest
              << " --bug=" << name << "\n";
  }
  simulation::chosen_bug = {};
}

TEST(DeliberateBugs, WithoutOneNothingIsFound) {
  for (uint64_t seed = 1; seed <= (kInstrumented ? 200 : 2000); ++seed) {
    World world(seed, nullptr, nullptr);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::simulation
