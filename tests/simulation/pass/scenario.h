#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/random.h"
#include "gradwire/tests/simulation/pass/scheduler.h"

namespace gradwire::pass_simulation {

using simulation::Random;

// The parameters of one schedule, chosen by its random numbers.
struct Scenario {
  explicit Scenario(Random& random);

  int workers = 2;
  // Number of contexts. The first `graphs` of them have a graph and passes.
  int contexts = 1;
  int graphs = 1;
  int messages = 8;
  uint32_t unknown = 0;
  // Number of passes over each graph. They begin at the same time if `at_once`, else one after the other.
  int passes = 1;
  bool at_once = false;
  // How many of 1000 passes use the fast mode, and how many have inputs.
  uint32_t fast = 0;
  uint32_t inputs = 0;

  // How many of 1000 messages are dropped, and how many are delivered twice.
  uint32_t drop = 0;
  uint32_t duplicate = 0;
  Time delay = 1000;
  Time long_delay = 1000;
  uint32_t long_delays = 0;
  // Before how many of 1000 steps other events occur, as if another thread ran.
  uint32_t preemptions = 0;

  // Number of messages of the forward pass that are sent late.
  int stragglers = 0;
  // The number of events after which a worker dies, a user cancels a pass, and a user releases a context; 0:
  // never.
  uint32_t kills[2] = {};
  uint32_t cancel = 0;
  uint32_t release = 0;
  // The n-th node that runs fails; 0: none.
  uint32_t node_error = 0;
};

}  // namespace gradwire::pass_simulation
