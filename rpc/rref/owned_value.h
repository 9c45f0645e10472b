#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/rpc/rref/handle.h"

namespace gradwire::rpc {

// The entry of a value in its owner's table, with the calls that wait for the value.
struct ValueSlot {
  using Found = absl::AnyInvocable<void(absl::StatusOr<OwnedValue>)>;
  struct Waiter {
    // Ends the wait; 0: no timer.
    uint64_t timer = 0;
    Found found;
  };
  // By number, which ascends in the order of arrival.
  using Waiters = absl::btree_map<uint64_t, Waiter>;
  std::optional<absl::StatusOr<OwnedValue>> value;
  // When the entry was made, for those who search for leaks. On Clock::system().
  absl::Time since = Clock::system().now();
  Waiters waiters;
  // The waiters are being called. A new waiter is queued behind them, so that calls keep their order.
  bool delivering = false;
};

}  // namespace gradwire::rpc
