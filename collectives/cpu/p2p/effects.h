#pragma once

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/collectives/cpu/p2p/operation.h"
#include "gradwire/collectives/cpu/p2p/payload.h"

namespace gradwire::collectives::cpu {

// What the owner of an Endpoint has to do after an event, in order.
struct Effect {
  enum class Kind {
    // Copy `payload`, which has the receive's size, into `receive`, and end it with `rank`, from which it came.
    kDeliver,
    // `receive` has failed with `status`.
    kEndReceive,
    // `send` has ended with `status`.
    kEndSend,
    // `rank` may send the data of the message `frame.id`, for `receive`: say `frame`.
    kClear,
    // Say `frame` to `rank`, in answer.
    kReply,
    // Let go of the data of `send`, which the carrier has taken, and call sent() or unsent().
    kRetract,
    // The outbox of `rank` has something new.
    kWake,
  };
  Kind kind;
  int rank = 0;
  Frame frame = {};
  SendPtr send = nullptr;
  ReceivePtr receive = nullptr;
  absl::Status status = absl::OkStatus();
  Payload payload = {};
};

// Copies the payload of a kDeliver effect into its receive, and lets go of it.
inline void take_payload(Effect& effect) {
  copy_bytes(effect.receive->data.data, effect.payload.data(), effect.payload.size());
  effect.payload = {};
}

using Effects = absl::InlinedVector<Effect, 2>;

}  // namespace gradwire::collectives::cpu
