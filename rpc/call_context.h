#pragma once

#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// Describes the call that a handler serves. Immutable and thread-safe. It stays current in the continuations
// of the handler, after co_await and in then().
class CallContext {
 public:
  // Called by the agent, once for each call that it serves.
  CallContext(Worker caller, absl::Time deadline, CancellationToken token)
      : caller_(std::move(caller)), deadline_(deadline), token_(std::move(token)) {}

  // The call that the calling thread serves; nullptr outside of handlers.
  static std::shared_ptr<const CallContext> current() { return ExecutionSlot<CallContext>::get(); }

  // The worker that made the call.
  WorkerInfo caller() const { return caller_.info(); }
  // The time when the caller stops waiting, on Clock::system(); infinite when it waits without a limit. Calls
  // that the handler makes end no later.
  absl::Time deadline() const { return deadline_; }
  // Whether the caller has cancelled the call, stopped waiting or died, so that the result is not needed.
  bool cancelled() const { return token_.cancelled(); }
  // As cancelled(), with the reason and with callbacks.
  const CancellationToken& cancellation() const { return token_; }

 private:
  const Worker caller_;
  const absl::Time deadline_;
  const CancellationToken token_;
};

}  // namespace gradwire::rpc
