#include "gradwire/tests/simulation/harness/run_schedules.h"
#include "gtest/gtest.h"

namespace gradwire::rendezvous_simulation {
namespace {

TEST(RendezvousSimulation, NodesAgreeAndMakeProgress) { simulation::run_schedules(); }

}  // namespace
}  // namespace gradwire::rendezvous_simulation
