#pragma once

#include <cstddef>
#include <cstdint>

#include "gradwire/tests/simulation/harness/schedule.h"

namespace gradwire::pass_simulation {

using simulation::Time;

struct Event {
  enum class Kind : uint8_t {
    kRequest,   // The request of call `arg` arrives.
    kAnswer,    // Answer `arg` arrives.
    kRetry,     // Call `arg` is repeated if it is unanswered.
    kServe,     // A worker serves arrival `arg`.
    kPerform,   // A worker performs the pending actions `arg`.
    kRan,       // Part `arg` has run a node.
    kBegin,     // A user calls backward() for pass `arg`.
    kRunRoots,  // The root of pass `arg` continues after the wave.
    kLearn,     // A worker handles a death. `arg` contains the worker, the dead worker and the step.
    kStraggle,  // A message of the forward pass is sent late.
    kOpen,      // A user opens context `arg`.
    kRelease,   // A user releases context `arg`.
  };
  Time time = 0;
  uint64_t order = 0;
  uint32_t arg = 0;
  Kind kind = Kind::kRequest;
};

// The queue of future events.
class Scheduler : public simulation::Schedule<Event> {
 public:
  void add(Time time, Event::Kind kind, std::size_t arg = 0) {
    Schedule::add({.time = time, .arg = static_cast<uint32_t>(arg), .kind = kind});
  }
};

}  // namespace gradwire::pass_simulation
