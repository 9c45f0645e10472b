#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/rpc/membership/failure_detector.h"
#include "gradwire/rpc/membership/roster.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/tests/simulation/references/network.h"
#include "gradwire/tests/simulation/references/scenario.h"
#include "gradwire/tests/simulation/references/scheduler.h"

namespace gradwire::references_simulation {

// A user's handle of an RRef.
struct Handle {
  uint64_t number = 0;
  rpc::Id rref;
  // Empty in the owner's own process.
  rpc::Id fork;
  uint64_t owner = 0;
  // The owner is lost or refused the fork, so the handle is unusable.
  bool failed = false;
  // Number of calls to the owner that require this handle.
  int kept = 0;
  // The user has released the handle. It is removed when `kept` is 0.
  bool released = false;
};

// One incarnation of a worker: the production state machines, and the handles of its users. Its index is its
// incarnation - 1.
struct Node {
  Node(int index, std::string name, int32_t wanted_id, const rpc::ReferenceBounds& bounds)
      : index(index),
        incarnation(index + 1),
        name(std::move(name)),
        wanted_id(wanted_id),
        references(incarnation, bounds),
        detector({.interval = absl::Microseconds(kInterval),
                  .suspect_after = absl::Microseconds(kSuspectAfter),
                  .dead_after = absl::Microseconds(kDeadAfter)}) {}

  const int index;
  const uint64_t incarnation;
  const std::string name;
  const int32_t wanted_id;

  // The process runs. A process that has ended never runs again: a restart is another node.
  bool running = true;
  // The node's join is in the log, and the node has read it.
  bool member = false;
  // The log contains the node's death or leave, whether or not the node has read it.
  bool gone = false;
  bool leaving = false;
  // The node has noticed that it cannot reach the store. It then marks silent workers as lost without waiting
  // for the log.
  bool store_lost = false;
  Time store_lost_at = 0;
  // Total time without the store.
  Time without_store_for = 0;
  // Bit set of the nodes whose joins this node had read when it lost the store.
  uint32_t known_at_loss = ~uint32_t{0};
  Time paused_until = 0;
  // Total time that the node was paused.
  Time paused_for = 0;
  // Until then the thread that reads the connections stands still, and the ticks of the detector with it.
  Time reader_until = 0;
  // Total time that the reader stood still.
  Time stalled_for = 0;
  // For each node that watched this one when its reader began to stand still: how long it had been disturbed
  // by then; else -1.
  std::array<Time, kMaxWorkers> watchers = {};

  rpc::References references;
  rpc::Roster roster;
  rpc::FailureDetector detector;
  Time next_tick = 0;
  bool retry_due = false;
  // Bit set of the nodes from which this node received a heartbeat since the last tick, and of those whose
  // heartbeats arrived while its reader stood still.
  uint32_t received_from = 0;
  uint32_t arrived_from = 0;
  // Bit set of the nodes whose deaths this node is about to write to the log.
  uint32_t accusing = 0;
  std::vector<Handle> handles;
};

}  // namespace gradwire::references_simulation
