#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// Seen from the process whose transport is wrapped.
enum class Direction { kOutgoing, kIncoming };

// What happens to one message.
struct Fault {
  enum class Kind {
    kDeliver,
    // It is lost; the connection goes on.
    kDrop,
    // It comes later, and so does everything behind it in its direction: a stream does not change its order.
    kDelay,
    // It comes twice.
    kDuplicate,
    // It is lost and its connection ends, Unavailable at both ends.
    kCut,
  };
  Kind kind = Kind::kDeliver;
  absl::Duration delay;
};

// Decides about each message, in either direction. It sees the message, so that it can tell a lost request
// from a lost answer. Called from several threads at once, with no lock held.
using FaultPolicy = std::function<Fault(Direction, const Message&)>;

// Probabilities of the kinds of fault; the rest is delivered.
struct FaultRates {
  double drop = 0;
  double delay = 0;
  double duplicate = 0;
  double cut = 0;
  // Delays are drawn evenly up to this one.
  absl::Duration max_delay = absl::Milliseconds(5);
  // Only these messages meet faults; all, unless set.
  std::function<bool(Direction, const Message&)> applies_to;
};

// A policy that draws from `rates` with a generator of its own: the same seed and the same sequence of
// messages give the same faults.
FaultPolicy seeded_fault_policy(uint64_t seed, FaultRates rates);

// For tests: `inner` with faults. Delays run by `clock`, which outlives the transport. With a policy that
// delivers everything it keeps the whole contract of a Transport. A message whose delay is not over when the
// other end closes is delivered then; one that waits here when this end closes without a flush is lost.
std::unique_ptr<Transport> make_fault_injecting_transport(std::unique_ptr<Transport> inner,
                                                          FaultPolicy policy, Clock& clock = Clock::system());

}  // namespace gradwire::transport
