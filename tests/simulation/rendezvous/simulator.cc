#include "gradwire/tests/simulation/harness/simulator.h"

#include "gradwire/tests/simulation/rendezvous/coverage.h"
#include "gradwire/tests/simulation/rendezvous/world.h"

namespace gradwire::simulation {

const Simulator& simulator() {
  static constexpr Simulator kSimulator = {
      .package = "//tests/simulation/rendezvous",
      .schedules_for_shorter = 0,
      .coverage = rendezvous_simulation::Coverage::table,
      .run = run_world<rendezvous_simulation::World>,
  };
  return kSimulator;
}

}  // namespace gradwire::simulation
