#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/link/flow_window.h"

namespace gradwire::rpc {

// A call for which a window has no room.
struct FlowRequest {
  std::string callee;
  std::string worker;  // The name of the callee's worker.
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // As PendingCall::timeout, for messages.
};

// Handles a full window as `options` say: fails with ResourceExhausted, or waits for a credit on the calling
// thread, which drives the event loop through `executor` meanwhile. Errors of the wait:
//   DeadlineExceeded    The deadline of the call has come.
//   ResourceExhausted   No thread is left for a handler that waits.
//   any                 The reason why the call that this thread serves was cancelled.
// If the worker is lost or the agent shuts down, the calls in the window end. Then the wait succeeds, and
// sending fails.
absl::StatusOr<FlowCredit> enter_full_window(FlowWindow& window, const FlowOptions& options,
                                             const FlowRequest& request,
                                             const std::shared_ptr<Executor>& executor, TimerQueue& timers);

}  // namespace gradwire::rpc
