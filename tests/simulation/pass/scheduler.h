#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::pass_simulation {

// Microseconds of the virtual clock.
using Time = int64_t;

struct Event {
  enum class Kind : uint8_t {
    kRequest,   // a request arrives; arg: call
    kAnswer,    // an answer arrives; arg: answer
    kRetry,     // a call is repeated if it is unanswered; arg: call
    kServe,     // a worker turns to a request that arrived; arg: arrival
    kAfter,     // what a state machine asked for is done; arg: aftermath
    kRan,       // a node has run; arg: part
    kBegin,     // backward() is called; arg: pass
    kRunRoots,  // the root's user goes on after the wave; arg: pass
    kLearn,     // a worker learns of a death; arg: worker, dead, step
    kStraggle,  // a message of the forward leaves late
    kOpen,      // arg: context
    kRelease,   // arg: context
  };
  Time time = 0;
  uint32_t order = 0;
  uint32_t arg = 0;
  Kind kind = Kind::kRequest;
};

// The events to come, by time; of equal times by the order in which they were added.
class Scheduler {
 public:
  void add(Time time, Event::Kind kind, std::size_t arg = 0) {
    events_.push_back({time, ++order_, static_cast<uint32_t>(arg), kind});
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
  uint32_t order_ = 0;
};

// What happened, line by line, for people. Schedules are run without one, and run again with one when they fail.
class Trace {
 public:
  template <class... Parts>
  void line(Time now, const Parts&... parts) {
    lines_.push_back(absl::StrCat(absl::Dec(now / 1000, absl::kSpacePad5), ".",
                                  absl::Dec(now % 1000, absl::kZeroPad3), " ms  ", parts...));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace gradwire::pass_simulation
