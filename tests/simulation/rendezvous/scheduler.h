#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gradwire::rendezvous_simulation {

// Microseconds of the virtual clock.
using Time = int64_t;
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
    kNews,     // node: its launcher looks at the news
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

// The events to come, by time; of equal times by the order in which they were added.
class Scheduler {
 public:
  void add(Time time, Event::Kind kind, std::size_t node = 0, std::size_t arg = 0) {
    events_.push_back({time, ++order_, kind, static_cast<uint16_t>(node), static_cast<uint32_t>(arg)});
    std::push_heap(events_.begin(), events_.end(), later);
  }
  bool empty() const { return events_.empty(); }
  Event take() {
    std::pop_heap(events_.begin(), events_.end(), later);
    const Event event = events_.back();
    events_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& x, const Event& y) {
    return x.time != y.time ? x.time > y.time : x.order > y.order;
  }

  std::vector<Event> events_;
  uint64_t order_ = 0;
};

}  // namespace gradwire::rendezvous_simulation
