#pragma once

#include <cstdint>

namespace gradwire::simulation {

// How much a simulation_test runs, from its command line:
//   --schedules=N  (50,000 unless given; fewer in builds with a sanitizer)
//   --seed=N       the first schedule's seed; the others follow. 1 unless given, so that the result of a
//                  commit does not depend on luck; --seed=random for another one each time, which is printed.
struct RunOptions {
  // Enough that every pair of a state and an event is met, whatever the seed.
  static constexpr uint64_t kSchedules = 50'000;

  uint64_t schedules = kSchedules;
  uint64_t seed = 1;
};

const RunOptions& run_options();

}  // namespace gradwire::simulation
