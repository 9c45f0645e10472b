#include "gradwire/tests/simulation/pass/scenario.h"

namespace gradwire::pass_simulation {

Scenario::Scenario(Random& random) {
  workers = static_cast<int>(random.between(2, 5));
  contexts = static_cast<int>(random.between(1, 4));
  graphs = contexts > 1 && random.below(3) == 0 ? 2 : 1;
  messages = static_cast<int>(random.between(1, random.below(4) == 0 ? 14 : 7));
  if (random.below(2) != 0) unknown = random.below(2) == 0 ? 1000 : 200;
  passes = random.below(4) == 0 ? 2 : 1;
  at_once = random.below(2) == 0;
  if (random.below(4) == 0) fast = random.below(2) == 0 ? 1000 : 500;
  if (random.below(3) == 0) inputs = random.below(2) == 0 ? 1000 : 500;
  if (random.below(3) == 0) drop = random.below(301);
  if (random.below(2) == 0) duplicate = random.below(301);
  // Stress the waves: all passes have inputs, so that MARK and NEEDED travel in both directions, and most
  // messages arrive twice.
  if (random.below(6) == 0) {
    fast = 0;
    inputs = 1000;
    duplicate = 600;
  }
  delay = random.between(200, 5000);
  long_delay = random.between(5000, 50'000);
  if (random.below(2) == 0) long_delays = random.below(350);
  if (random.below(3) != 0) preemptions = random.below(500);
  if (random.below(2) == 0) stragglers = static_cast<int>(random.below(6));
  // A third of the scenarios has no fault of a worker or a user.
  if (random.below(3) == 0) return;
  const uint32_t within = 20 + 6 * messages * passes * graphs;
  const auto some_time = [&](uint32_t one_in) -> uint32_t {
    return random.below(one_in) == 0 ? static_cast<uint32_t>(random.between(1, within)) : 0;
  };
  kills[0] = some_time(2);
  if (kills[0] != 0 && workers > 2) kills[1] = some_time(3);
  cancel = some_time(4);
  release = some_time(4);
  if (random.below(4) == 0) node_error = static_cast<uint32_t>(random.between(1, 3 * messages));
}

}  // namespace gradwire::pass_simulation
