#include "gradwire/tests/simulation/harness/simulator.h"

#include "gradwire/tests/simulation/references/coverage.h"
#include "gradwire/tests/simulation/references/world.h"

namespace gradwire::simulation {

const Simulator& simulator() {
  static constexpr Simulator kSimulator = {
      .package = "//tests/simulation/references",
      .least_events = 50,
      .schedules_for_bugs = 50'000,
      .coverage = references_simulation::Coverage::table,
      .run = run_world<references_simulation::World>,
  };
  return kSimulator;
}

}  // namespace gradwire::simulation
