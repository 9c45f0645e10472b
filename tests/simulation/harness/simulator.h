#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/tests/simulation/harness/coverage_table.h"
#include "gradwire/tests/simulation/harness/trace.h"

namespace gradwire::simulation {

// What the programs that all simulators share (simulation_test, bugs_test, replay) know of a simulator.
struct Simulator {
  struct Run {
    // Empty, or the violated invariant.
    std::string violation;
    uint64_t events = 0;
  };

  // The package of its targets.
  std::string_view package;
  // A schedule of fewer events does not count.
  uint64_t least_events = 0;
  // Each deliberate bug must be found within so many schedules.
  uint64_t schedules_for_bugs = 20'000;
  // After the first that finds it, so many more are tried for one with a shorter trace.
  uint64_t schedules_for_shorter = 2000;
  // A table in which nothing has been counted.
  CoverageTable (*coverage)() = nullptr;
  // Runs the schedule of a seed. `coverage` and `trace` may be nullptr.
  Run (*run)(uint64_t seed, CoverageTable* coverage, Trace* trace) = nullptr;
};

// The simulator that this program is linked with: each defines it.
const Simulator& simulator();

// How a simulator runs whose schedule is a World.
template <class World>
Simulator::Run run_world(uint64_t seed, CoverageTable* coverage, Trace* trace) {
  World world(seed, coverage, trace);
  const std::string& violation = world.run();
  return {violation, world.steps()};
}

}  // namespace gradwire::simulation
