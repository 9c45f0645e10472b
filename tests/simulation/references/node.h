#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/membership/failure_detector.h"
#include "gradwire/rpc/membership/roster.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/scenario.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// A handle that a user has.
struct Handle {
  uint64_t number = 0;
  rpc::Id rref;
  // Empty: in the owner's own process.
  rpc::Id fork;
  uint64_t owner = 0;
  // Its owner is lost, or it was refused: it refers to nothing.
  bool failed = false;
  // Calls to the owner that rely on it.
  int kept = 0;
  // The user has let go of it; it goes when it is not kept.
  bool released = false;
};

// One incarnation of a worker: the production state machines and what its users hold. Its index is the
// incarnation - 1.
struct Node {
  Node(int index, std::string name, int32_t wanted_id)
      : index(index),
        incarnation(index + 1),
        name(std::move(name)),
        wanted_id(wanted_id),
        references(incarnation),
        detector({.interval = absl::Microseconds(kInterval),
                  .suspect_after = absl::Microseconds(kSuspectAfter),
                  .dead_after = absl::Microseconds(kDeadAfter)}) {}

  const int index;
  const uint64_t incarnation;
  const std::string name;
  const int32_t wanted_id;

  // The process is there. Once it has ended it never comes back: a restart is another node.
  bool running = true;
  // Its join is in the log, and it has read that.
  bool member = false;
  // The log says that it is dead or has left, whether it has read that or not.
  bool gone = false;
  bool leaving = false;
  // It has noticed that it cannot reach the store, and loses those that are silent without waiting for the
  // log.
  bool store_lost = false;
  Time store_lost_at = 0;
  // For how long it has been without the store, and whose joins it had read when it lost the store, as bits.
  Time without_store_for = 0;
  uint32_t known_at_loss = ~uint32_t{0};
  Time paused_until = 0;
  // For how long it stood still so far.
  Time paused_for = 0;

  rpc::References references;
  rpc::Roster roster;
  rpc::FailureDetector detector;
  Time next_tick = 0;
  bool retry_due = false;
  // Nodes that said something since the last tick, as bits.
  uint32_t heard = 0;
  // Nodes of which a death is about to be written, as bits.
  uint32_t accusing = 0;
  std::vector<Handle> handles;
};

}  // namespace gradwire::references_simulation
