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
    kStart,    // a launcher starts; arg: as which of the scenario's
    kDrive,    // node: its client's thread goes on
    kRequest,  // a call reaches the store; arg: call
    kAnswer,   // its answer reaches the node
    kGiveUp,   // the node waits for it no longer
    kSlice,    // node: its wait for another record is over, or cut short; arg: call
    kNews,     // node: its launcher looks at the update
    // node: what becomes of its workers; arg: round
    kWorkersGone,
    kWorkersFail,
    kWorkersDone,
    kServed,
    kLeave,
    kCrash,
    kPause,   // arg: for how long, in milliseconds
    kCut,     // from the store
    kFreeze,  // everybody is paused
    kOutage,  // everybody is cut from the store
    kCalm,    // no faults any more
    kCheck,   // whether all has settled
  };
  Time time = 0;
  uint64_t order = 0;
  Kind kind = Kind::kDrive;
  uint16_t node = 0;
  uint32_t arg = 0;
};

// The events to come.
class Scheduler : public simulation::Schedule<Event> {
 public:
  void add(Time time, Event::Kind kind, std::size_t node = 0, std::size_t arg = 0) {
    Schedule::add(
        {.time = time, .kind = kind, .node = static_cast<uint16_t>(node), .arg = static_cast<uint32_t>(arg)});
  }
};

}  // namespace gradwire::rendezvous_simulation
