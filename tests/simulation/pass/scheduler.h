#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::pass_simulation {

using simulation::Time;

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
  uint64_t order = 0;
  uint32_t arg = 0;
  Kind kind = Kind::kRequest;
};

// The events to come.
class Scheduler : public simulation::Schedule<Event> {
 public:
  void add(Time time, Event::Kind kind, std::size_t arg = 0) {
    Schedule::add({.time = time, .arg = static_cast<uint32_t>(arg), .kind = kind});
  }
};

}  // namespace gradwire::pass_simulation
