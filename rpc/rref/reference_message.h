#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/codec/id.h"

namespace gradwire::rpc {

// A message of the reference protocol (proto/rpc.proto, "References"). It may arrive twice, late and in any
// order. Its sender repeats it until it is answered or its receiver is lost.
struct ReferenceMessage {
  enum class Kind : uint8_t {
    // Holder -> owner: the holder has `fork` of `rref`. The owner answers that it is in its table, or refuses
    // it.
    kAdd,
    // Receiver -> sharer: the owner knows `fork`, or never will. The sharer may delete its own fork.
    kConfirm,
    // Holder -> owner: the last handle of `fork` was destroyed.
    kDelete,
    // Sharer -> receiver, when the connection on which `fork` was sent broke: asks whether it arrived. The
    // answer
    // is kReceived or kNever. After kNever the receiver refuses the fork if it arrives later.
    kRevoke,
    // A worker that keeps something because of dead workers -> every live worker: the workers in `dead` are
    // dead.
    // The receiver answers when it accepts nothing from them any more, and the owners know every fork that it
    // had accepted from them.
    kFence,
  };
  // kRefused: the receiver regards the sender as dead. kDenied: the owner's policy forbids the sender of a
  // kAdd to hold the reference.
  enum class Answer : uint8_t { kDone, kRefused, kReceived, kNever, kDenied };

  Kind kind = Kind::kAdd;
  uint64_t to = 0;  // An incarnation.
  Id rref;
  Id fork;
  // kFence: the number of the fence. A later round of the same asker replaces an earlier one.
  uint64_t round = 0;
  std::vector<uint64_t> dead;

  template <class H>
  friend H AbslHashValue(H hash, const ReferenceMessage& message) {
    return H::combine(std::move(hash), message.kind, message.to, message.rref, message.fork, message.round,
                      message.dead);
  }
};

}  // namespace gradwire::rpc
