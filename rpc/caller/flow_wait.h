#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/link/flow_window.h"

namespace gradwire::rpc {

// A call that a window has no room for.
struct FlowRequest {
  std::string callee;
  std::string worker;  // Whom it goes to.
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // As the caller said it, for messages.
};

// What the options say is to be done then: fails with ResourceExhausted; or waits on the calling thread, driving the
// loop through `executor` meanwhile. Errors of that: DeadlineExceeded; the reason why the call that the calling thread
// serves was cancelled; ResourceExhausted where no thread is left for a handler that waits. That the worker is lost, or
// the agent shuts down, shows as the end of the calls that hold the places: then the wait succeeds, and sending fails.
absl::StatusOr<FlowCredit> enter_full_window(FlowWindow& window, const FlowOptions& options,
                                             const FlowRequest& request,
                                             const std::shared_ptr<Executor>& executor, TimerQueue& timers);

}  // namespace gradwire::rpc
