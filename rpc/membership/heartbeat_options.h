#pragma once

#include "absl/time/time.h"

namespace gradwire::rpc {

// How workers notice that another does not answer.
struct HeartbeatOptions {
  // How often a worker says something on each connection.
  absl::Duration interval = absl::Seconds(1);
  // Silent for so long: WorkerState::kSuspect. At least three times the interval.
  absl::Duration suspect_after = absl::Seconds(3);
  // Silent for so long: dead, for good. One that was paused (SIGSTOP, a debugger, its machine moved) for less comes back
  // without harm. A worker whose process ended on a host that is up is noticed at once, whatever stands here.
  absl::Duration dead_after = absl::Seconds(20);
};

}  // namespace gradwire::rpc
