#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/collectives/cpu/p2p/payload.h"
#include "gradwire/collectives/cpu/span.h"

// Messages under way, as an Endpoint keeps them. The lock that guards the endpoint guards them too; `data` is
// used outside of it by whoever performs an effect.
namespace gradwire::collectives::cpu {

// A send or a receive. Its future is that of `promise`.
template <typename Result>
struct Operation {
  Operation(std::shared_ptr<Executor> executor, int peer, uint64_t channel, int64_t tag, Span data,
            absl::Time deadline)
      : peer(peer),
        channel(channel),
        tag(tag),
        data(data),
        deadline(deadline),
        promise(std::move(executor)) {}

  const int peer;
  const uint64_t channel;
  const int64_t tag;
  const Span data;
  const absl::Time deadline;
  Promise<Result> promise;
  // Nobody uses `data` any more.
  std::atomic<bool> done{false};

  uint64_t id = 0;
};

// A message from this rank to `peer`.
struct Send : Operation<void> {
  enum class Stage {
    kQueued,      // In the outbox; the receiver knows nothing of it.
    kSendingRts,  // The carrier sends the announcement.
    kRtsSent,     // The receiver has not answered.
    kCleared,     // In the outbox, with its data: the receiver has asked for it.
    kSending,     // The carrier sends the data.
  };
  using Operation::Operation;

  Stage stage = Stage::kQueued;
  bool eager = false;    // It counts in the window.
  bool counted = false;  // It counts as announced: neither answered nor taken back.
  // What happened while the carrier was sending: the receiver asked for the data, or the message ended.
  bool cleared = false;
  bool nacked = false;
  absl::Status ended;
};

// A receive from `peer`, which may be kAnyRank; the rank that the message came from.
struct Receive : Operation<int> {
  using Operation::Operation;
};

using SendPtr = std::shared_ptr<Send>;
using ReceivePtr = std::shared_ptr<Receive>;

// What the owner of an Endpoint has to do after an event, in order.
struct Effect {
  enum class Kind {
    // Copy `payload`, which has the receive's size, into `receive`, and end it with `rank`, from which it
    // came.
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
