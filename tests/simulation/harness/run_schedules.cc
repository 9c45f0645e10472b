#include "gradwire/tests/simulation/harness/run_schedules.h"

#include <chrono>
#include <iostream>
#include <string>

#include "gradwire/tests/simulation/harness/run_options.h"
#include "gradwire/tests/simulation/harness/simulator.h"
#include "gtest/gtest.h"

namespace gradwire::simulation {

void run_schedules() {
  const uint64_t count = run_options().schedules;
  CoverageTable coverage = simulator().coverage();
  uint64_t schedules = 0, shorter = 0, events = 0;
  int failures = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t seed = run_options().seed; schedules < count && failures < 5; ++seed) {
    const Simulator::Run run = simulator().run(seed, &coverage, nullptr);
    if (!run.violation.empty()) {
      ++failures;
      ADD_FAILURE() << "seed " << seed << ": " << run.violation << "\nto print its trace: bazel run "
                    << simulator().package << ":replay -- --seed=" << seed;
    }
    events += run.events;
    ++(run.events < simulator().least_events ? shorter : schedules);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << schedules << " schedules of at least " << simulator().least_events << " events, " << shorter
            << " shorter ones, " << events << " events in all, " << seconds
            << " s: " << 1e9 * seconds / events << " ns an event\n"
            << coverage.print();
  for (const std::string& pair : coverage.reached_impossible()) {
    ADD_FAILURE() << "reached a pair that impossible.inc lists as impossible: " << pair;
  }
  for (const std::string& pair : coverage.unreached(count)) {
    ADD_FAILURE() << "reached too seldom: " << pair
                  << "; if the pair is impossible, list it in impossible.inc";
  }
}

}  // namespace gradwire::simulation
