#include <chrono>
#include <iostream>
#include <string>

#include "gradwire/tests/simulation/run_options.h"
#include "gradwire/tests/simulation/world.h"
#include "gtest/gtest.h"

namespace gradwire::simulation {
namespace {

// Of more events than these.
constexpr uint64_t kEvents = 50;
TEST(Simulation, NothingIsFreedEarlyAndNothingStays) {
  const uint64_t first = run_options().seed;
  const uint64_t count = run_options().schedules;
  Coverage coverage;
  uint64_t schedules = 0, shorter = 0, steps = 0;
  int failures = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first; schedules < count && failures < 5; ++seed) {
    World world(seed, &coverage, nullptr);
    const std::string& violation = world.run();
    if (!violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << violation
                    << "\nto see what happened: bazel run //tests/simulation:replay -- --seed=" << seed;
    }
    steps += world.steps();
    ++(world.steps() < kEvents ? shorter : schedules);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << schedules << " schedules of at least " << kEvents << " events, " << shorter
            << " shorter ones, " << steps << " events in all, " << seconds << " s: " << 1e9 * seconds / steps
            << " ns an event\n"
            << coverage.print();
  for (const std::string& pair : coverage.reached_impossible()) {
    ADD_FAILURE() << "reached: " << pair << ", which impossible.inc says cannot be";
  }
  for (const std::string& pair : coverage.unreached(count)) {
    ADD_FAILURE() << "reached too seldom: " << pair << " (impossible.inc has those that cannot be)";
  }
}

}  // namespace
}  // namespace gradwire::simulation
