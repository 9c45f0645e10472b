#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/transport/message.h"

namespace gradwire::collectives::cpu {

// The bytes of a message and their owner. Movable, not copyable.
class Payload {
 public:
  Payload() = default;
  // Refers to the message's only buffer or, if it has none, to its header from `offset` on.
  Payload(transport::Message message, std::size_t offset) : message_(std::move(message)), offset_(offset) {}
  // Refers to memory that its owner must keep while the payload is used.
  Payload(void* data, std::size_t size) { message_.buffers.emplace_back(data, size, nullptr); }
  Payload(Payload&&) = default;
  Payload& operator=(Payload&&) = default;

  static Payload copy_of(const void* data, std::size_t size) {
    Payload payload;
    if (size > 0) payload.message_.header.assign(static_cast<const char*>(data), size);
    return payload;
  }

  const void* data() const {
    return message_.buffers.empty() ? message_.header.data() + offset_ : message_.buffers[0].data();
  }
  std::size_t size() const {
    return message_.buffers.empty() ? message_.header.size() - offset_ : message_.buffers[0].size();
  }

 private:
  transport::Message message_;
  std::size_t offset_ = 0;
};

// ---- The operations that an Endpoint has in progress. The lock that guards the endpoint guards them, too,
// except Operation::data: the thread that performs an effect uses it without the lock.

// A send or a receive. `promise` makes the future that the caller waits for.
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
  // Set when no thread uses `data` any more.
  std::atomic<bool> done{false};

  uint64_t id = 0;
};

// A message from this rank to `peer`. The stages are those of the eager and the rendezvous protocol
// (frame.h).
struct Send : Operation<void> {
  enum class Stage {
    kQueued,       // In the outbox. The receiver does not know of the message.
    kSendingRts,   // The carrier is sending the RTS.
    kRtsSent,      // The RTS has been sent. Neither CTS nor NACK has been received.
    kCtsReceived,  // In the outbox again, now with the data.
    kSending,      // The carrier is sending the data.
  };
  using Operation::Operation;

  Stage stage = Stage::kQueued;
  bool eager = false;              // Its bytes are charged to the window.
  bool counts_as_pending = false;  // It counts in pending_rts: neither answered nor cancelled.
  // Events that arrive while the carrier is sending. They take effect when the carrier has finished: the
  // receiver answered with CTS or NACK, or the operation ended with the status `ended`.
  bool cts_received = false;
  bool nack_received = false;
  absl::Status ended;
};

// A receive from `peer`, which may be kAnyRank. The result is the source of the message.
struct Receive : Operation<int> {
  using Operation::Operation;
};

using SendPtr = std::shared_ptr<Send>;
using ReceivePtr = std::shared_ptr<Receive>;

// An action that the owner of an Endpoint must perform after an event. The effects of one event are performed
// in order.
struct Effect {
  enum class Kind {
    // Copy `payload` into `receive`, which has the same size, and complete the receive with `rank`, the
    // source.
    kDeliver,
    // Complete `receive` with the error `status`.
    kEndReceive,
    // Complete `send` with `status`.
    kEndSend,
    // Send the CTS `frame` to `rank`: it may now send the data of the message `frame.id`, which goes into
    // `receive`.
    kCts,
    // Send `frame` to `rank` as an answer.
    kReply,
    // Stop using the data of `send`, which the carrier has taken, and then call sent(), released() or
    // unsent().
    kRetract,
    // The outbox of `rank` has a new entry.
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

// Copies the payload of a kDeliver effect into its receive, and releases the payload.
inline void take_payload(Effect& effect) {
  copy_bytes(effect.receive->data.data, effect.payload.data(), effect.payload.size());
  effect.payload = {};
}

using Effects = absl::InlinedVector<Effect, 2>;

}  // namespace gradwire::collectives::cpu
