#include <iostream>
#include <utility>

#include "gradwire/tests/simulation/harness/bug.h"
#include "gradwire/tests/simulation/harness/instrumented.h"
#include "gradwire/tests/simulation/harness/simulator.h"
#include "gtest/gtest.h"

// Checks that a simulator detects errors: it must find each deliberate mistake of its bugs.txt.
namespace gradwire::simulation {
namespace {

TEST(DeliberateBugs, EachIsFound) {
  const uint64_t max_schedules = simulator().schedules_for_bugs;
  const uint64_t for_shorter = kInstrumented ? 0 : simulator().schedules_for_shorter;
  for (const Bug& bug : all_bugs()) {
    chosen_bug = bug.name;
    uint64_t first = 0, shortest = 0;
    Simulator::Run best;
    for (uint64_t seed = 1; seed <= (first == 0 ? max_schedules : first + for_shorter); ++seed) {
      Simulator::Run run = simulator().run(seed, nullptr, nullptr);
      if (run.violation.empty()) continue;
      if (first == 0) first = seed;
      if (shortest != 0 && run.events >= best.events) continue;
      shortest = seed;
      best = std::move(run);
    }
    if (first == 0) {
      ADD_FAILURE() << "deliberate bug " << bug.name << " was not found in " << max_schedules << " schedules";
      continue;
    }
    std::cout << bug.name << ": found by seed " << first << "; seed " << shortest << " after " << best.events
              << " events: " << best.violation << "\n    bazel run " << simulator().package
              << ":replay -- --seed=" << shortest << " --bug=" << bug.name << "\n";
  }
  chosen_bug = {};
}

TEST(DeliberateBugs, NoViolationWithoutABug) {
  for (uint64_t seed = 1; seed <= (kInstrumented ? 200 : 2000); ++seed) {
    EXPECT_EQ(simulator().run(seed, nullptr, nullptr).violation, "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::simulation
