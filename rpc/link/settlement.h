#pragma once

#include <cstdint>

#include "gradwire/rpc/link/arrivals.h"

namespace gradwire::rpc {

// Who knows what was sent to other workers, and what has been read of theirs (proto/rpc.proto, "What has arrived").
// Implementations are thread-safe and call nobody back, so that they may be asked with a lock held.
class Settlement {
 public:
  virtual ~Settlement() = default;

  // What this worker has sent to another until now.
  virtual Departures departures(uint64_t incarnation) const = 0;
  // What `incarnation` says that it has sent has all been handled here, or never will come. Until it is so, settled() is
  // false.
  virtual bool require(uint64_t incarnation, const Departures& sent) = 0;
  virtual bool settled(uint64_t incarnation) = 0;
};

}  // namespace gradwire::rpc
