#pragma once

#include <cstdint>
#include <list>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "gradwire/rpc/rref/handle.h"

namespace gradwire::rpc {

// The place of a value in its owner's table, and who waits until it is made.
struct ValueSlot {
  using Found = absl::AnyInvocable<void(absl::StatusOr<OwnedValue>)>;
  struct Waiter {
    uint64_t number = 0;
    uint64_t timer = 0;
    Found found;
  };
  std::optional<absl::StatusOr<OwnedValue>> value;
  std::list<Waiter> waiters;
  // The waiters are being called: who comes now queues behind them, so that calls keep their order.
  bool announcing = false;
};

}  // namespace gradwire::rpc
