#include <chrono>
#include <iostream>
#include <string>

#include "gradwire/tests/simulation/rendezvous/world.h"
#include "gradwire/tests/simulation/run_options.h"
#include "gtest/gtest.h"

namespace gradwire::rendezvous_simulation {
namespace {

TEST(RendezvousSimulation, NodesAgreeAndGetSomewhere) {
  const uint64_t first = simulation::run_options().seed;
  const uint64_t count = simulation::run_options().schedules;
  Coverage coverage;
  uint64_t steps = 0;
  int failures = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    World world(seed, &coverage, nullptr);
    const std::string& violation = world.run();
    if (!violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << violation
                    << "\nto see what happened: bazel run //tests/simulation/rendezvous:replay -- --seed="
                    << seed;
    }
    steps += world.steps();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << count << " schedules, " << steps << " events in all, " << seconds
            << " s: " << 1e9 * seconds / steps << " ns an event\n"
            << coverage.print();
  for (const std::string& pair : coverage.reached_impossible()) {
    ADD_FAILURE() << "reached: " << pair << ", which impossible.inc says cannot be";
  }
  for (const std::string& pair : coverage.unreached(count)) {
    ADD_FAILURE() << "reached too seldom: " << pair << " (impossible.inc has those that cannot be)";
  }
}

}  // namespace
}  // namespace gradwire::rendezvous_simulation
