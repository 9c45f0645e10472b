#pragma once

#include <cstdint>

#include "gradwire/rpc/link/arrivals.h"

namespace gradwire::rpc {

// Knows which messages this worker has sent to other workers, and which of their messages it has read
// (proto/rpc.proto, "Order of arrival"). Implementations are thread-safe and make no callbacks, so that they
// may be called with a lock held.
class ArrivalOrder {
 public:
  virtual ~ArrivalOrder() = default;

  // The messages that this worker has sent to another worker so far.
  virtual Departures departures(uint64_t incarnation) const = 0;
  // Requires that all messages that `incarnation` says it has sent have been handled here, or can never
  // arrive. Until then settled() is false. Returns settled().
  virtual bool require(uint64_t incarnation, const Departures& sent) = 0;
  virtual bool settled(uint64_t incarnation) = 0;
};

}  // namespace gradwire::rpc
