#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/rendezvous/scheduler.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::rendezvous_simulation {

using simulation::Random;

// Shorter than in production, in the same order to one another.
inline constexpr Time kInterval = 5 * kSecond;
inline constexpr int kAttempts = 3;
inline constexpr Time kLastCall = 8 * kSecond;
inline constexpr Time kJoinTimeout = 80 * kSecond;
inline constexpr Time kStoreTimeout = 60 * kSecond;
inline constexpr Time kCallTimeout = 5 * kSecond;

// What may happen in one schedule.
struct Scenario {
  explicit Scenario(Random& random);

  rendezvous::Settings settings;
  bool round_store = false;
  int watched = 8;

  // A launcher that is started.
  struct Launcher {
    Time start = 0;
    std::optional<int> rank;
    bool other_settings = false;
  };
  std::vector<Launcher> launchers;

  // Of 1000 calls.
  uint32_t lose_requests = 0;
  uint32_t lose_answers = 0;
  uint32_t long_delays = 0;
  Time delay = 20 * kMillisecond;
  Time long_delay = kSecond;
  // Of 1000: how much faster or slower a node's clock may be.
  int skew = 0;

  // When the faults end.
  Time calm = 0;
  int crashes = 0;
  // Of 1000 crashed launchers: those that are started again.
  uint32_t restarts = 0;
  int pauses = 0;
  int cuts = 0;
  int leaves = 0;
  // The whole cluster stands still, or has no store; nothing else goes wrong, so nobody may be taken for
  // lost.
  int freezes = 0;
  int outages = 0;
  bool nobody_is_lost() const { return freezes + outages > 0; }

  // Of 1000 rounds of a node.
  uint32_t worker_failures = 0;
  Time work = 0;
  Time grace = 0;
};

}  // namespace gradwire::rendezvous_simulation
