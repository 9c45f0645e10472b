#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace gradwire::simulation {

// Microseconds of the virtual clock.
using Time = int64_t;

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

// The events to come, by time; of equal times by the order in which they were added.
class Scheduler {
 public:
  void add(Time time, Event::Kind kind, int a = 0, int b = 0, uint32_t arg = 0) {
    if (kind != Event::Kind::kTick) ++pending_;
    events_.push_back({time, ++order_, kind, static_cast<uint8_t>(a), static_cast<uint8_t>(b), arg});
    std::push_heap(events_.begin(), events_.end(), later);
  }
  bool empty() const { return events_.empty(); }
  Event take() {
    std::pop_heap(events_.begin(), events_.end(), later);
    const Event event = events_.back();
    events_.pop_back();
    if (event.kind != Event::Kind::kTick) --pending_;
    return event;
  }
  // Events other than ticks, which never end.
  uint64_t pending() const { return pending_; }

 private:
  static bool later(const Event& x, const Event& y) {
    return x.time != y.time ? x.time > y.time : x.order > y.order;
  }

  std::vector<Event> events_;
  uint64_t order_ = 0;
  uint64_t pending_ = 0;
};

}  // namespace gradwire::simulation
