#include "gradwire/tests/simulation/harness/run_schedules.h"
#include "gtest/gtest.h"

namespace gradwire::pass_simulation {
namespace {

TEST(PassSimulation, EveryGradientComesOnceAndEveryPassEnds) { simulation::run_schedules(); }

}  // namespace
}  // namespace gradwire::pass_simulation
