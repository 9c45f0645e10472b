#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/simulation/instrumented.h"
#include "tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

using simulation::kInstrumented;
namespace {

constexpr uint64_t kSchedules = 300'000;
constexpr uint64_t kInstrumentedSchedules = 5'000;

uint64_t from_env(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// GRADWIRE_SIMULATION_SEED and GRADWIRE_SIMULATION_SCHEDULES: where to begin, and how many to run.
TEST(PassSimulation, EveryGradientComesOnceAndEveryPassEnds) {
  const uint64_t first = from_env("GRADWIRE_SIMULATION_SEED", 1);
  const uint64_t count =
      from_env("GRADWIRE_SIMULATION_SCHEDULES", kInstrumented ? kInstrumentedSchedules : kSchedules);
  Coverage coverage;
  uint64_t schedules = 0, steps = 0;
  int failures = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = first; schedules < count && failures < 5; ++seed, ++schedules) {
    World world(seed, &coverage, nullptr);
    const std::string& violation = world.run();
    if (!violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << violation
                    << "\nto see what happened: bazel run //tests/simulation/pass:replay -- --seed=" << seed;
    }
    steps += world.steps();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << schedules << " schedules, " << steps << " events in all, " << seconds
            << " s: " << 1e9 * seconds / steps << " ns an event\n"
            << coverage.print();
  for (const std::string& pair : coverage.reached_impossible()) {
    ADD_FAILURE() << "reached: " << pair << ", which impossible.inc says cannot be";
  }
  if (schedules < kSchedules) return;  // Too few to reach what is rare.
  for (const std::string& pair : coverage.unreached()) {
    ADD_FAILURE() << "never reached: " << pair << " (impossible.inc has those that cannot be)";
  }
}

}  // namespace
}  // namespace gradwire::pass_simulation
