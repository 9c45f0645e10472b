#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

using simulation::Random;

// The timeouts of the simulated group. They are shorter than in production, but in the same order.
inline constexpr Time kInterval = 100'000;
inline constexpr Time kSuspectAfter = 250'000;
inline constexpr Time kDeadAfter = 1'000'000;
// A worker that was disturbed (paused, stalled or cut off) for less than this in total must not be declared
// dead. The difference from kDeadAfter covers the delays of probing.
inline constexpr Time kTolerated = 500'000;

// The parameters of one schedule, chosen by its random numbers.
struct Scenario {
  explicit Scenario(Random& random);

  int workers = 2;
  // How many of 1000 messages about references, and answers to them, are dropped and duplicated.
  uint32_t drop = 0;
  uint32_t duplicate = 0;
  // How many of 1000 calls are lost. Requests and answers of calls carry references.
  uint32_t lose_call = 0;
  // Most packets take up to `delay`; `long_delays` of 1000 packets take up to `long_delay`.
  Time delay = 1000;
  Time long_delay = 1000;
  uint32_t long_delays = 0;

  // The longest time until a worker reads a new entry of the log.
  Time log_delay = 1000;

  int actions = 20;
  // Users share references more often than they do anything else.
  bool sharing = false;
  // After how many of 1000 shares the user releases its own handle.
  uint32_t release_after_share = 0;
  Time span = 100'000;
  // The number of forks that a worker holds at most because one other worker gave them.
  std::size_t max_given = std::numeric_limits<std::size_t>::max();
  // Workers send forged messages, which delete or confirm forks of others.
  bool forgeries = false;
  // Without the store no worker joins or leaves. Each worker alone decides that another is lost, and it keeps
  // the forks of lost workers until the end.
  bool store = true;
  // Workers lose the store until all faults are healed: all workers, or one.
  bool store_loss = false;
  bool store_loss_of_all = false;
  // The group is open: world_size is 0, and the log assigns ids.
  bool open = true;
  int crashes = 0;
  int restarts = 0;
  int joins = 0;
  int leaves = 0;
  int pauses = 0;
  int stalls = 0;
  int cuts = 0;
  // Pauses, stalls and cuts last until the other workers declare the worker dead.
  bool long_faults = false;
};

}  // namespace gradwire::references_simulation
