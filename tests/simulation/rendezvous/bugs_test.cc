#include <iostream>
#include <string>
#include <string_view>

#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/instrumented.h"
#include "gradwire/tests/simulation/rendezvous/world.h"
#include "gtest/gtest.h"

// The simulation is worth what it notices: each mistake that the machine can be built with must be found.
namespace gradwire::rendezvous_simulation {
namespace {

// Each must be found within so many schedules.
constexpr uint64_t kMost = 20'000;

TEST(RendezvousBugs, EachIsFound) {
  for (const simulation::Bug& bug : simulation::all_bugs()) {
    const std::string_view name = bug.name;
    simulation::chosen_bug = name;
    bool found = false;
    for (uint64_t seed = 1; seed <= kMost && !found; ++seed) {
      World world(seed, nullptr, nullptr);
      const std::string& violation = world.run();
      if (violation.empty()) continue;
      found = true;
      std::cout << name << ": " << violation
                << "\n    bazel run //tests/simulation/rendezvous:replay -- --seed=" << seed
                << " --bug=" << name << "\n";
    }
    EXPECT_TRUE(found) << name << " was not found in " << kMost << " schedules";
  }
  simulation::chosen_bug = {};
}

TEST(RendezvousBugs, WithoutOneNothingIsFound) {
  for (uint64_t seed = 1; seed <= (simulation::kInstrumented ? 200 : 1000); ++seed) {
    World world(seed, nullptr, nullptr);
    EXPECT_EQ(world.run(), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::rendezvous_simulation
