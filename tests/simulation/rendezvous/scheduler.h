#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::rendezvous_simulation {

using simulation::Time;
inline constexpr Time kMillisecond = 1000;
inline constexpr Time kSecond = 1'000'000;

struct Event {
  enum class Kind : uint8_t {
    kStart,    // A launcher starts; arg: its index in the scenario.
    kDrive,    // node: the thread of its client continues.
    kRequest,  // A call reaches the store; arg: call.
    kAnswer,   // The answer of a call reaches the node.
    kGiveUp,   // The node's timeout for a call has passed.
    kSlice,    // node: its watch of the record ends; arg: call.
    kUpdate,   // node: its launcher reads the update.
    // node: events of its workers; arg: round.
    kWorkersGone,
    kWorkersFail,
    kWorkersDone,
    kServed,
    kLeave,
    kCrash,
    kPause,   // arg: duration in milliseconds, also for the next three.
    kCut,     // The node is cut off from the store.
    kFreeze,  // All nodes are paused.
    kOutage,  // All nodes are cut off from the store.
    kCalm,    // The faults end.
    kCheck,   // Check whether all nodes have settled.
  };
  Time time = 0;
  uint64_t order = 0;
  Kind kind = Kind::kDrive;
  uint16_t node = 0;
  uint32_t arg = 0;
};

// The future events, in the order of their times.
class Scheduler : public simulation::Schedule<Event> {
 public:
  void add(Time time, Event::Kind kind, std::size_t node = 0, std::size_t arg = 0) {
    Schedule::add(
        {.time = time, .kind = kind, .node = static_cast<uint16_t>(node), .arg = static_cast<uint32_t>(arg)});
  }
};

}  // namespace gradwire::rendezvous_simulation
