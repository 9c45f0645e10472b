#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/rref/owned_value.h"
#include "gradwire/rpc/rref/reference_driver.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

// The values that an agent owns, from the request that makes one on: gives them to those who wait.
// Thread-safe.
class OwnedValues {
 public:
  // Both outlive it.
  OwnedValues(ReferenceHost& agent, ReferenceDriver& driver) : agent_(agent), driver_(driver) {}

  // A request to create `rref` came in from `holder`.
  void begin(const Id& rref, const Id& fork, const Worker& holder);
  // The value is there, or will never be.
  void set(const Id& rref, absl::StatusOr<OwnedValue> value);
  // Calls `found` with the value when it is there: at once, or later on the thread that makes it. An RRef
  // that nobody here has heard of gets a grace time, since the request that creates it may be on its way on
  // another connection; then NotFound. DeadlineExceeded at the deadline.
  void find(const Id& rref, absl::Time deadline, ValueSlot::Found found);
  // The caller of a creation says that it failed before the request came here (kCreationFailed).
  void serve_creation_failed(const ServiceCall& call);

 private:
  // The time of a waiter is up: its grace time, if `deadline` has not come yet, or all of it.
  void expire(const Id& rref, uint64_t waiter, absl::Time deadline, bool grace);

  ReferenceHost& agent_;
  ReferenceDriver& driver_;
  std::atomic<uint64_t> next_waiter_{1};
};

}  // namespace gradwire::rpc
