#include "gradwire/tests/simulation/references/scenario.h"

namespace gradwire::references_simulation {

Scenario::Scenario(Random& random) {
  workers = static_cast<int>(random.between(2, 6));
  if (workers > 4 && random.below(2) == 0) workers = 3;
  if (random.below(4) != 0) drop = random.below(301);
  if (random.below(2) != 0) duplicate = random.below(201);
  if (random.below(3) != 0) lose_call = random.below(151);
  delay = random.between(200, 20'000);
  long_delay = random.between(10'000, 100'000);
  if (random.below(2) != 0) long_delays = random.below(350);
  actions = static_cast<int>(random.between(22, 38));
  span = random.between(4'000, 100'000);
  store = random.below(8) != 0;
  forgeries = random.below(8) == 0;
  open = random.below(3) != 0;
  sharing = random.below(2) == 0;
  if (random.below(3) != 0) release_after_share = random.between(300, 1000);
  if (random.below(8) == 0) max_given = random.between(1, 3);
  // A third of the scenarios has no fault of a worker.
  if (random.below(3) == 0) return;
  crashes = static_cast<int>(random.below(workers > 2 ? 3 : 2));
  pauses = static_cast<int>(random.below(2));
  cuts = static_cast<int>(random.below(3));
  stalls = random.below(3) == 0 ? 1 : 0;
  if (!store) return;
  long_faults = random.below(3) == 0;
  if (long_faults && pauses + stalls + cuts == 0) cuts = 1;
  if (random.below(2) == 0) restarts = crashes;
  joins = static_cast<int>(random.below(2));
  leaves = static_cast<int>(random.below(2));
  if (random.below(3) == 0) {
    // Many workers leave at nearly the same time, and the others read the log late.
    leaves = static_cast<int>(random.between(1, workers - 1));
    crashes = static_cast<int>(random.below(2));
    restarts = 0;
    sharing = true;
    release_after_share = random.between(300, 1000);
    log_delay = random.between(10'000, 100'000);
  } else if (random.below(2) == 0) {
    log_delay = random.between(1000, 100'000);
  }
  if (random.below(8) == 0) {
    store_loss = true;
    store_loss_of_all = random.below(3) == 0;
    sharing = true;
    // The worker that lost the store does not know the workers that join afterwards.
    open = true;
    joins = static_cast<int>(random.between(1, 2));
    crashes = static_cast<int>(random.between(1, 2));
    restarts = 0;
    leaves = 0;
  }
  if (long_faults) span = random.between(1'300'000, 2'000'000);
}

}  // namespace gradwire::references_simulation
