#include "gradwire/tests/simulation/harness/run_schedules.h"
#include "gtest/gtest.h"

namespace gradwire::p2p_simulation {
namespace {

TEST(Simulation, EachOperationEndsOnceWithItsOwnBytes) { simulation::run_schedules(); }

}  // namespace
}  // namespace gradwire::p2p_simulation
