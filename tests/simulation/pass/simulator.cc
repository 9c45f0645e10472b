#include "gradwire/tests/simulation/harness/simulator.h"

#include "gradwire/tests/simulation/pass/coverage.h"
#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::simulation {

const Simulator& simulator() {
  static constexpr Simulator kSimulator = {
      .package = "//tests/simulation/pass",
      .coverage = pass_simulation::Coverage::table,
      .run = run_world<pass_simulation::World>,
  };
  return kSimulator;
}

}  // namespace gradwire::simulation
