#include "gradwire/tests/simulation/rendezvous/scenario.h"

namespace gradwire::rendezvous_simulation {

Scenario::Scenario(Random& random) {
  settings.min_nodes = static_cast<int>(random.between(1, 3));
  settings.max_nodes = settings.min_nodes + static_cast<int>(random.below(3) == 0 ? 0 : random.below(3));
  settings.max_restarts = static_cast<int>(random.below(4));
  settings.fixed_ranks = random.below(5) == 0;
  const auto store = random.below(8);
  round_store = store < 2   ? rendezvous::RoundStore::kServed
                : store < 4 ? rendezvous::RoundStore::kPrepared
                            : rendezvous::RoundStore::kReady;
  if (random.below(3) == 0) watched = static_cast<int>(random.between(1, 2));

  calm = random.between(30, 160) * kSecond;
  const int count = settings.max_nodes + static_cast<int>(random.below(3)) - (random.below(4) == 0 ? 1 : 0);
  const bool at_once = random.below(2) == 0;
  for (int i = 0; i < count; ++i) {
    Launcher launcher{.start = random.between(0, at_once ? 5 * kSecond : calm / 2)};
    if (random.below(3) == 0) launcher.start = random.between(0, calm);
    if (settings.fixed_ranks) launcher.rank = i % settings.max_nodes;
    launcher.other_settings = random.below(60) == 0;
    launchers.push_back(launcher);
  }

  delay = random.between(1, 60) * kMillisecond;
  work = random.between(10, 200) * kSecond;
  grace = random.below(3) == 0 ? random.between(1, 30) * kSecond : 200 * kMillisecond;
  skew = static_cast<int>(random.below(60));
  if (random.below(10) == 0) {
    freezes = static_cast<int>(random.below(3));
    // Only one outage: two could overlap to one that is longer than the store timeout.
    if (freezes == 0) outages = 1;
    return;
  }
  if (random.below(2) == 0) worker_failures = random.below(500);
  if (random.below(2) == 0) lose_requests = random.below(150);
  if (random.below(2) == 0) lose_answers = random.below(150);
  if (random.below(2) == 0) long_delays = random.below(200);
  long_delay = random.between(1, 12) * kSecond;
  if (random.below(3) == 0) return;
  if (random.below(2) == 0) crashes = static_cast<int>(random.between(1, 3));
  if (random.below(6) == 0) crashes = count;
  restarts = random.below(1001);
  if (random.below(2) == 0) pauses = static_cast<int>(random.between(1, 3));
  if (random.below(3) == 0) cuts = static_cast<int>(random.between(1, 2));
  if (random.below(3) == 0) leaves = static_cast<int>(random.between(1, 2));
}

}  // namespace gradwire::rendezvous_simulation
