#pragma once

#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// What a handler can know of the call it serves. Immutable; thread-safe. Follows the handler across co_await
// and then.
class CallContext {
 public:
  // For the agent, which makes one for each call that it serves.
  CallContext(Worker caller, absl::Time deadline, CancellationToken token)
      : caller_(std::move(caller)), deadline_(deadline), token_(std::move(token)) {}

  // The call that the calling thread serves; nullptr outside of handlers.
  static std::shared_ptr<const CallContext> current() { return ExecutionSlot<CallContext>::get(); }

  // The worker that made the call.
  WorkerInfo caller() const { return caller_.info(); }
  // When the caller stops waiting, on Clock::system(); infinite if never. Calls made by the handler end no
  // later.
  absl::Time deadline() const { return deadline_; }
  // Whether the caller has given up, cancelled or died: nobody wants the result.
  bool cancelled() const { return token_.cancelled(); }
  // The same with the reason, and with callbacks for when it happens.
  const CancellationToken& cancellation() const { return token_; }

 private:
  const Worker caller_;
  const absl::Time deadline_;
  const CancellationToken token_;
};

}  // namespace gradwire::rpc
