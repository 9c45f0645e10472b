#include "gradwire/tests/simulation/harness/simulator.h"

#include "gradwire/tests/simulation/p2p/coverage.h"
#include "gradwire/tests/simulation/p2p/world.h"

namespace gradwire::simulation {

const Simulator& simulator() {
  static constexpr Simulator kSimulator = {
      .package = "//tests/simulation/p2p",
      .least_events = 20,
      .coverage = p2p_simulation::Coverage::table,
      .run = run_world<p2p_simulation::World>,
  };
  return kSimulator;
}

}  // namespace gradwire::simulation
