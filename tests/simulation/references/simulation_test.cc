#include "gradwire/tests/simulation/harness/run_schedules.h"
#include "gtest/gtest.h"

namespace gradwire::references_simulation {
namespace {

TEST(Simulation, NothingIsFreedEarlyAndNothingStays) { simulation::run_schedules(); }

}  // namespace
}  // namespace gradwire::references_simulation
