#pragma once

#include <cstdint>

namespace gradwire::simulation {

// The options of a simulation_test, from its command line:
//   --schedules=N  Number of schedules. Default: 50,000; fewer in builds with a sanitizer.
//   --seed=N       Seed of the first schedule; the next schedules use N+1, N+2 and so on. Default: 1, so that
//                  the result of a commit does not depend on chance.
//   --seed=random  Chooses a new seed in each run and prints it.
struct RunOptions {
  // With this many schedules every possible pair of a state and an event occurs, whatever the seed.
  static constexpr uint64_t kSchedules = 50'000;

  uint64_t schedules = kSchedules;
  uint64_t seed = 1;
};

// The options of this process. Defined in simulation_main.cc.
const RunOptions& run_options();

}  // namespace gradwire::simulation
