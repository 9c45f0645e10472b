#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::references_simulation {

using simulation::Time;

struct Event {
  enum class Kind : uint8_t {
    kDeliver,         // arg: packet
    kAct,             // a user of some worker does something
    kRetry,           // a: sends again what was not answered
    kTick,            // a: its failure detector
    kFollow,          // a: reads the group's log
    kAppend,          // a: writes into it; arg: what
    kProbed,          // a: its attempt to connect to b ends
    kBroken,          // a: notices that its connection to b ended
    kEndCreation,     // a: gives up a creation; arg: the fork's counter
    kEndOwnCreation,  // a: a creation on itself ends; arg: the same
    kCrash,
    kRestart,  // a: starts again as a new incarnation
    kJoin,
    kLeave,
    kPause,      // a; arg: for how long
    kCut,        // a from b (kStore: the store, kAll: everybody); arg: for how long
    kLoseStore,  // arg: 1: all workers lose the store, 0: one alone; until everything heals
    kCount
  };
  Time time = 0;
  uint64_t order = 0;
  Kind kind = Kind::kAct;
  uint8_t a = 0;
  uint8_t b = 0;
  uint32_t arg = 0;
};

// The events to come.
class Scheduler : public simulation::Schedule<Event> {
 public:
  void add(Time time, Event::Kind kind, int a = 0, int b = 0, uint32_t arg = 0) {
    if (kind != Event::Kind::kTick) ++pending_;
    Schedule::add(
        {.time = time, .kind = kind, .a = static_cast<uint8_t>(a), .b = static_cast<uint8_t>(b), .arg = arg});
  }
  Event take() {
    const Event event = Schedule::take();
    if (event.kind != Event::Kind::kTick) --pending_;
    return event;
  }
  // Events other than ticks, which never end.
  uint64_t pending() const { return pending_; }

 private:
  uint64_t pending_ = 0;
};

}  // namespace gradwire::references_simulation
