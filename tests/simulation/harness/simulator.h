#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/trace.h"

namespace gradwire::simulation {

// Describes a simulator to the programs that all simulators share: simulation_test, bugs_test and replay.
struct Simulator {
  struct Run {
    // The violated invariant; empty if none was violated.
    std::string violation;
    uint64_t events = 0;
  };

  // The Bazel package of the simulator's targets.
  std::string_view package;
  // A schedule with fewer events does not count towards RunOptions::schedules.
  uint64_t least_events = 0;
  // Each deliberate bug must be found within this number of schedules.
  uint64_t schedules_for_bugs = 20'000;
  // After the first schedule that finds a bug, bugs_test runs this many more and reports the one with the
  // shortest trace.
  uint64_t schedules_for_shorter = 2000;
  // Returns an empty coverage table.
  CoverageTable (*coverage)() = nullptr;
  // Runs the schedule of a seed. `coverage` and `trace` may be nullptr; otherwise they are filled in.
  Run (*run)(uint64_t seed, CoverageTable* coverage, Trace* trace) = nullptr;
};

// The simulator that this program is linked with. Each simulator defines this function.
const Simulator& simulator();

// Implements Simulator::run for a simulator whose schedule is a `World`.
template <class World>
Simulator::Run run_world(uint64_t seed, CoverageTable* coverage, Trace* trace) {
  World world(seed, coverage, trace);
  const std::string& violation = world.run();
  return {violation, world.steps()};
}

}  // namespace gradwire::simulation
