#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/simulation/instrumented.h"
#include "tests/simulation/rendezvous/world.h"

namespace gradwire::rendezvous_simulation {
namespace {

constexpr uint64_t kSchedules = 100'000;
constexpr uint64_t kInstrumentedSchedules = 1'000;

uint64_t from_env(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// GRADWIRE_SIMULATION_SEED and GRADWIRE_SIMULATION_SCHEDULES: where to begin, and how many to run.
TEST(RendezvousSimulation, NodesAgreeAndGetSomewhere) {
  const uint64_t first = from_env("GRADWIRE_SIMULATION_SEED", 1);
  const uint64_t count = from_env("GRADWIRE_SIMULATION_SCHEDULES",
                                  simulation::kInstrumented ? kInstrumentedSchedules : kSchedules);
  Coverage coverage;
  uint64_t steps = 0;
  int failures = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first; seed < first + count && failures < 5; ++seed) {
    World world(seed, nullptr);
    const std::string& violation = world.run();
    if (!violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << violation
                    << "\nto see what happened: bazel run //tests/simulation/rendezvous:replay -- --seed="
                    << seed;
    }
    steps += world.steps();
    coverage.add(world.coverage());
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << count << " schedules, " << steps << " events in all, " << seconds
            << " s: " << 1e9 * seconds / steps << " ns an event\n"
            << coverage.print();
  if (count < kSchedules) return;  // Too few to reach what is rare.
  for (const std::string& what : coverage.unreached()) ADD_FAILURE() << "never happened: " << what;
}

}  // namespace
}  // namespace gradwire::rendezvous_simulation
