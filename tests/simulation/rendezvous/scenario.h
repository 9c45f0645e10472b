#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/rendezvous/scheduler.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::rendezvous_simulation {

using simulation::Random;

// The timeouts are shorter than in production, but in the same order.
inline constexpr Time kInterval = 5 * kSecond;
inline constexpr int kAttempts = 3;
inline constexpr Time kLastCall = 8 * kSecond;
inline constexpr Time kJoinTimeout = 80 * kSecond;
inline constexpr Time kStoreTimeout = 60 * kSecond;
inline constexpr Time kCallTimeout = 5 * kSecond;

// The parameters of one schedule.
struct Scenario {
  explicit Scenario(Random& random);

  rendezvous::Settings settings;
  rendezvous::RoundStore round_store = rendezvous::RoundStore::kReady;
  int watched = 8;

  // One launcher of the schedule.
  struct Launcher {
    Time start = 0;
    std::optional<int> rank;
    bool other_settings = false;
  };
  std::vector<Launcher> launchers;

  // Probabilities, per 1000 calls.
  uint32_t lose_requests = 0;
  uint32_t lose_answers = 0;
  uint32_t long_delays = 0;
  Time delay = 20 * kMillisecond;
  Time long_delay = kSecond;
  // How much faster or slower a node's clock may be, in 1/1000.
  int skew = 0;

  // The time at which the faults end.
  Time calm = 0;
  int crashes = 0;
  // Number of crashed launchers, per 1000, that are started again.
  uint32_t restarts = 0;
  int pauses = 0;
  int cuts = 0;
  int leaves = 0;
  // Number of times that all nodes are paused, or cut off from the store. Then there are no other faults, and
  // no node may be removed as lost.
  int freezes = 0;
  int outages = 0;
  bool no_node_is_lost() const { return freezes + outages > 0; }

  // Probability of a failure of a node's workers, per 1000 rounds.
  uint32_t worker_failures = 0;
  Time work = 0;
  Time grace = 0;
};

}  // namespace gradwire::rendezvous_simulation
