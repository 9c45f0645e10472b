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
  std::string worker;  // The callee's worker.
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // As PendingCall's, for messages.
};

// Takes a place in a full window, as the options say: fails with ResourceExhausted; or waits on the calling
// thread, driving the loop through `executor` meanwhile. Errors of the wait: DeadlineExceeded; the reason why
// the call that the calling thread serves was cancelled; ResourceExhausted where no thread is left for a
// handler that waits. If the worker is lost or the agent shuts down, the calls that hold the places end: then
// the wait succeeds, and sending fails.
absl::StatusOr<FlowCredit> enter_full_window(FlowWindow& window, const FlowOptions& options,
                                             const FlowRequest& request,
                                             const std::shared_ptr<Executor>& executor, TimerQueue& timers);

}  // namespace gradwire::rpc
