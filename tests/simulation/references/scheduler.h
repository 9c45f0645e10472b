#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::references_simulation {

using simulation::Time;

struct Event {
  enum class Kind : uint8_t {
    kDeliver,         // Packet `arg` arrives.
    kAct,             // A user of a random worker does something.
    kRetry,           // Worker `a` repeats its unanswered messages.
    kTick,            // The failure detector of worker `a` has a tick.
    kFollow,          // Worker `a` reads the group's log.
    kAppend,          // Worker `a` writes the entry appends_[arg] to the log.
    kProbed,          // The attempt of worker `a` to connect to `b` ends.
    kBroken,          // Worker `a` notices that its connection to `b` ended.
    kEndCreation,     // Worker `a` gives up the creation whose fork has the counter `arg`.
    kEndOwnCreation,  // A creation of worker `a` on itself ends; the fork has the counter `arg`.
    kCrash,
    kRestart,  // Worker `a` starts again as a new incarnation.
    kJoin,
    kLeave,
    kPause,   // A random worker is paused for the time `arg`.
    kStall,   // The reader of a random worker stands still for the time `arg`. What it writes goes on.
    kGoesOn,  // The reader of worker `a` goes on.
    kCut,  // A random worker is cut off for the time `arg`: from the store if `b` is kStore, from all nodes
           // if it is kAll, else from another random worker.
    kLoseStore,  // Workers lose the store until all faults are healed: all workers if `arg` is 1, else one.
    kCount
  };
  Time time = 0;
  uint64_t order = 0;
  Kind kind = Kind::kAct;
  uint8_t a = 0;
  uint8_t b = 0;
  uint32_t arg = 0;
};

// The queue of future events.
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
  // Number of queued events except ticks. (There is always a next tick.)
  uint64_t pending() const { return pending_; }

 private:
  uint64_t pending_ = 0;
};

}  // namespace gradwire::references_simulation
