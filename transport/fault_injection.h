#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// The direction as seen from the process whose transport is wrapped.
enum class Direction { kOutgoing, kIncoming };

// The fault that is applied to one message.
struct Fault {
  enum class Kind {
    kDeliver,
    // The message is lost; the connection stays open.
    kDrop,
    // The message is delayed, and so are all later messages in its direction: a stream keeps its order.
    kDelay,
    // The message is delivered twice.
    kDuplicate,
    // The message is lost, and its connection is closed with Unavailable at both ends.
    kCut,
  };
  Kind kind = Kind::kDeliver;
  absl::Duration delay;
};

// Chooses the fault of each message in both directions. It gets the message, so that it can distinguish a
// lost request from a lost answer. Called from several threads concurrently, without a lock held.
using FaultPolicy = std::function<Fault(Direction, const Message&)>;

// Probabilities of the kinds of fault. All other messages are delivered.
struct FaultRates {
  double drop = 0;
  double delay = 0;
  double duplicate = 0;
  double cut = 0;
  // Delays are distributed uniformly from 0 to this value.
  absl::Duration max_delay = absl::Milliseconds(5);
  // Selects the messages that can have faults; if unset, all messages can.
  std::function<bool(Direction, const Message&)> applies_to;
};

// Returns a policy with the probabilities `rates` and its own random generator: the same seed and the same
// sequence of messages yield the same faults.
FaultPolicy seeded_fault_policy(uint64_t seed, FaultRates rates);

// For tests: wraps `inner` and injects faults. Delays use `clock`, which must outlive the transport. With a
// policy that delivers all messages, the wrapper fulfils the contract of a Transport. If the peer closes
// while an incoming message is delayed, the message is delivered first. If this end closes without a flush,
// delayed outgoing messages are lost.
std::unique_ptr<Transport> make_fault_injecting_transport(std::unique_ptr<Transport> inner,
                                                          FaultPolicy policy, Clock& clock = Clock::system());

}  // namespace gradwire::transport
