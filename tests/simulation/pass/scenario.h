#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/pass/scheduler.h"

namespace gradwire::pass_simulation {

using simulation::Random;

// What may happen in one schedule.
struct Scenario {
  explicit Scenario(Random& random);

  int workers = 2;
  // Those with a graph and passes come first.
  int contexts = 1;
  int graphs = 1;
  int messages = 8;
  uint32_t unknown = 0;
  // Passes in each graph; the second begins when the first has ended, or with it.
  int passes = 1;
  bool at_once = false;
  // Of 1000 passes.
  uint32_t fast = 0;
  uint32_t inputs = 0;

  // Of 1000 messages: not delivered, delivered twice.
  uint32_t drop = 0;
  uint32_t duplicate = 0;
  Time delay = 1000;
  Time long_delay = 1000;
  uint32_t long_delays = 0;
  // Of 1000 steps that another thread may come before.
  uint32_t gaps = 0;

  // Messages of the forward that leave late.
  int stragglers = 0;
  // After so many events, or never (0).
  uint32_t kills[2] = {};
  uint32_t cancel = 0;
  uint32_t release = 0;
  // The node that runs as the n-th of all fails.
  uint32_t node_error = 0;
};

}  // namespace gradwire::pass_simulation
