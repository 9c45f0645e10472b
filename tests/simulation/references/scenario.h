#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

using simulation::Random;

// The clocks of the simulated group: shorter than in production, in the same order to one another.
inline constexpr Time kInterval = 100'000;
inline constexpr Time kSuspectAfter = 250'000;
inline constexpr Time kDeadAfter = 1'000'000;
// Disturbed for less than this in all, nobody may be taken for dead: what is left covers the delays of
// probing.
inline constexpr Time kTolerated = 500'000;

// What may happen in one schedule.
struct Scenario {
  explicit Scenario(Random& random);

  int workers = 2;
  // Of 1000 messages about references, and of answers to them.
  uint32_t drop = 0;
  uint32_t duplicate = 0;
  // Of 1000 calls, whose requests and answers carry references.
  uint32_t lose_call = 0;
  // Most packets take up to `delay`; some up to `long_delay`.
  Time delay = 1000;
  Time long_delay = 1000;
  uint32_t long_delays = 0;

  // How long it may take until a worker reads what was written into the log.
  Time log_delay = 1000;

  int actions = 20;
  // Users pass on references more than they do anything else, and then let go of their own: of 1000.
  bool sharing = false;
  uint32_t let_go = 0;
  Time span = 100'000;
  // Workers delete and confirm forks of others.
  bool confused = false;
  // Without it nobody joins or leaves, each worker loses others by its own decision, and what it keeps for
  // them stays.
  bool store = true;
  // Workers lose the store until everything heals: all of them, or one alone.
  bool store_loss = false;
  bool store_loss_of_all = false;
  // world_size 0: ids are assigned.
  bool open = true;
  int crashes = 0;
  int restarts = 0;
  int joins = 0;
  int leaves = 0;
  int pauses = 0;
  int cuts = 0;
  // Pauses and cuts that last until the others give the worker up.
  bool long_faults = false;
};

}  // namespace gradwire::references_simulation
