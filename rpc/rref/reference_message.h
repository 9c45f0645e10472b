#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/codec/id.h"

namespace gradwire::rpc {

// What workers tell each other about references (proto/rpc.proto, "References"). Every message may come
// twice, late and in any order, and is repeated until it is answered or its receiver is lost.
struct ReferenceMessage {
  enum class Kind : uint8_t {
    // Holder -> owner: it holds `fork` of `rref`. The answer: the owner has it in its table, or refuses it.
    kAdd,
    // Receiver -> sharer: the owner knows `fork`, or never will; the sharer need not keep its own for it.
    kConfirm,
    // Holder -> owner: the last handle of `fork` has gone.
    kDelete,
    // Sharer -> receiver, when the connection broke on which `fork` went out: do you have it? The answer is
    // kReceived or kNever, and then it is refused should it come after all.
    kRevoke,
    // Whoever keeps something because of dead workers -> every live one: the workers in `dead` are. Answered
    // when the receiver takes nothing from them any more and the owners know all that it had taken.
    kFence,
  };
  enum class Answer : uint8_t { kDone, kRefused, kReceived, kNever };

  Kind kind = Kind::kAdd;
  uint64_t to = 0;  // An incarnation.
  Id rref;
  Id fork;
  // kFence: a later round of the same asker replaces an earlier.
  uint64_t round = 0;
  std::vector<uint64_t> dead;

  template <class H>
  friend H AbslHashValue(H hash, const ReferenceMessage& message) {
    return H::combine(std::move(hash), message.kind, message.to, message.rref, message.fork, message.round,
                      message.dead);
  }
};

}  // namespace gradwire::rpc
