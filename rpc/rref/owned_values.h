#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/rref/owned_value.h"
#include "gradwire/rpc/rref/reference_driver.h"
#include "gradwire/rpc/rref/reference_host.h"

namespace gradwire::rpc {

// The values that an agent owns, from the creating request on. It passes them to the calls that wait for
// them. Thread-safe.
class OwnedValues {
 public:
  // Both arguments outlive the object.
  OwnedValues(ReferenceHost& agent, ReferenceDriver& driver) : agent_(agent), driver_(driver) {}

  // A request to create `rref` arrived from `holder`.
  void begin(const Id& rref, const Id& fork, const Worker& holder);
  // The value was made, by work on the current streams of this thread, or its creation failed.
  void set(const Id& rref, absl::StatusOr<OwnedValue> value);
  // Calls `found` with the value once it exists: at once, or later on the thread that makes it. For an
  // unknown RRef it waits for a grace time, since the creating request may arrive on another connection, and
  // then fails with NotFound. Fails with DeadlineExceeded at the deadline. Returns the number of the wait for
  // give_up(); 0 if `found` was called at once.
  uint64_t find(const Id& rref, absl::Time deadline, ValueSlot::Found found);
  // Ends a wait: calls its `found` with `reason`. Has no effect if the wait has ended before.
  void give_up(const Id& rref, uint64_t wait, const absl::Status& reason);
  // Serves kCreationFailed: the creation failed at its caller, and its request may never arrive.
  void serve_creation_failed(const ServiceCall& call);

 private:
  // Passes the value on to the calls that wait for it, until none waits any more.
  void deliver(const Id& rref, const absl::StatusOr<OwnedValue>& value);
  // The time of a waiter has ended: its grace time (`grace`), or its deadline.
  void expire(const Id& rref, uint64_t wait, absl::Time deadline, bool grace);

  ReferenceHost& agent_;
  ReferenceDriver& driver_;
  std::atomic<uint64_t> next_wait_{1};
};

}  // namespace gradwire::rpc
