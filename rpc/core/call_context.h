#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

// Identifies a call over all workers and all time: both of its ends know it, and no two calls share it. A
// repetition of a call has the same identity as its first attempt.
struct CallIdentity {
  uint64_t caller =
      0;  // The incarnation of the worker that made the call (rpc/core/worker.h); 0: not a call.
  uint64_t number = 0;  // The caller's number of the call: Request.call_id in proto/rpc.proto.

  // Whether this identifies a call.
  explicit operator bool() const { return caller != 0; }
  // Whether both identify the same call.
  friend bool operator==(const CallIdentity&, const CallIdentity&) = default;
  // For hash tables of Abseil.
  template <class H>
  friend H AbslHashValue(H hash, const CallIdentity& call) {
    return H::combine(std::move(hash), call.caller, call.number);
  }
};

// When the caller of a call stops waiting. This is not an absl::Time, because it is a time of a monotonic
// clock: it must not be compared with absl::Now().
class Deadline {
 public:
  // `time`: on Clock::system(); InfiniteFuture if the caller waits without a limit.
  explicit Deadline(absl::Time time) : time_(time) {}

  // The time that is left, measured now. Zero after the deadline; infinite if the caller waits without a
  // limit.
  absl::Duration left() const;
  // For the library, which measures with Clock::system().
  absl::Time on_system_clock() const { return time_; }

 private:
  absl::Time time_;
};

// Describes the call that a handler serves. Immutable and thread-safe. It stays current in the continuations
// of the handler, after co_await and in then().
class CallContext {
 public:
  // Called by the agent, once for each call that it serves.
  CallContext(Worker caller, absl::Time deadline, CancellationToken token, CallIdentity identity = {},
              CallIdentity root = {})
      : caller_(std::move(caller)),
        deadline_(deadline),
        token_(std::move(token)),
        identity_(identity),
        root_(root ? root : identity) {}

  // The call that the calling thread serves; nullptr outside of handlers.
  static std::shared_ptr<const CallContext> current() { return ExecutionSlot<CallContext>::get(); }

  // The worker that made the call.
  WorkerInfo caller() const { return caller_.info(); }
  // Identifies the call over all workers, for example in a log. Flight records and `tools/inspect` name calls
  // by it.
  const CallIdentity& identity() const { return identity_; }
  // The outermost call, if a handler has made this call, or a handler which another one has called, and so
  // on; else identity().
  const CallIdentity& root() const { return root_; }
  // When the caller stops waiting. Calls that the handler makes end no later.
  Deadline deadline() const { return deadline_; }
  // Whether the caller has cancelled the call, stopped waiting or died, so that the result is not needed, or
  // this worker shuts down.
  bool cancelled() const { return token_.cancelled(); }
  // As cancelled(), with the reason and with callbacks.
  const CancellationToken& cancellation() const { return token_; }

 private:
  const Worker caller_;
  const Deadline deadline_;
  const CancellationToken token_;
  const CallIdentity identity_;
  const CallIdentity root_;
};

}  // namespace gradwire::rpc
