#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace gradwire::simulation {

// Microseconds of the virtual clock.
using Time = int64_t;

// A priority queue of future events, ordered by time. Events with the same time are ordered as they were
// added. An Event has the members `time` and `order`; add() sets `order`.
template <class Event>
class Schedule {
 public:
  void add(Event event) {
    event.order = ++order_;
    events_.push_back(std::move(event));
    std::push_heap(events_.begin(), events_.end(), later);
  }
  bool empty() const { return events_.empty(); }
  Event take() {
    std::pop_heap(events_.begin(), events_.end(), later);
    Event event = std::move(events_.back());
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

}  // namespace gradwire::simulation
