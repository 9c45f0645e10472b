#pragma once

#include <cstdint>

#include "gradwire/rpc/link/arrivals.h"

namespace gradwire::rpc {

// Knows which messages were sent to other workers, and which of theirs have been read (proto/rpc.proto, "What
// has arrived"). Implementations are thread-safe and make no callbacks, so that they may be used with a lock
// held.
class Settlement {
 public:
  virtual ~Settlement() = default;

  // The messages that this worker has sent to another until now.
  virtual Departures departures(uint64_t incarnation) const = 0;
  // Requires that all messages that `incarnation` says it has sent are handled here, or will never come;
  // settled() is false until then. True if nothing is left to wait for.
  virtual bool require(uint64_t incarnation, const Departures& sent) = 0;
  virtual bool settled(uint64_t incarnation) = 0;
};

}  // namespace gradwire::rpc
