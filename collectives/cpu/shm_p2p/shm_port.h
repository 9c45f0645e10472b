#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"

namespace gradwire::collectives::cpu {

// The channel number of all messages: the Endpoint serves one group only.
inline constexpr uint64_t kShmChannel = 0;

// Longer messages are sent in pieces.
inline constexpr std::size_t kShmWholeBytes = kRingPieceBytes / 2;
// Limit for pending RTS. The rest of kMaxPendingRts is reserved for eager messages in pieces, which the
// Matcher counts as announced until they are complete.
inline constexpr std::size_t kShmMaxPendingRts = kMaxPendingRts - kEagerWindow / kShmWholeBytes;

// The two rings between this rank and another one. Writes the entries of the rank's outbox, and passes
// incoming records to the endpoint. A long message is sent in pieces, so that the reader copies one piece
// while the writer copies the next. Pieces are copied into the memory of the receive, or are buffered until a
// receive has been found.
//
// Not thread-safe. The payload of a kDeliver effect is in the ring until read() or try_take() has returned.
class ShmPort {
 public:
  ShmPort(Endpoint& endpoint, int rank, const P2pRing& out, const P2pRing& in)
      : endpoint_(endpoint), rank_(rank), out_(out), in_(in) {}

  // ---- Writing.

  // Writes the message at once if it is short, nothing waits, and there is room for it. Returns whether it
  // did.
  bool try_write(int64_t tag, Span data);
  // Writes entries of the outbox while there is room. Returns whether it wrote anything.
  bool flush(Effects& effects);
  // Whether an entry waits for room.
  bool has_more() const { return writing_.has_value() || endpoint_.sends().outboxes().has(rank_); }
  // Whether a message is partly written.
  bool writing() const { return writing_.has_value(); }
  // Stops using the data of `send` if it is being written.
  void retract(const SendPtr& send, Effects& effects);

  // ---- Reading.

  bool has_record() const { return in_.has_record(); }
  // Takes the message at the head of the ring into `data`, if it has this tag and size and was sent whole.
  // `wake`: the writer waits for room.
  bool try_take(int64_t tag, Span data, Effects& effects, bool& wake);
  bool next_is_eager() const;
  // Processes one record. InvalidArgument if the other rank violates the protocol. REQUIRES: has_record()
  absl::Status read(Effects& effects, bool& wake);
  // A receive has been found for a message: its pieces are copied there. Returns whether the sender must be
  // sent a CTS.
  bool set_receive(const ReceivePtr& receive, uint64_t message, Effects& effects);
  // The message is not wanted. Returns whether the sender must be sent a NACK, because it has not begun to
  // send.
  bool discard(uint64_t message);

  P2pRingWriter& out() { return out_; }
  const P2pRingReader& in() const { return in_; }
  // Drops all messages that are partly written or read.
  void reset();

 private:
  struct Writing {
    SendPtr send;
    std::size_t written = 0;
  };
  // A message that arrives in pieces.
  struct Incoming {
    uint64_t size = 0;
    uint64_t received = 0;
    bool eager = false;  // It began with kBegin, not with kRts.
    bool unwanted = false;
    ReceivePtr receive;            // Set when a receive has been found.
    std::unique_ptr<char[]> held;  // The data until then.
  };

  // Writes the next entry of the outbox, or the beginning of it. Returns false if there is no room.
  bool begin(Effects& effects);
  absl::Status on_record(const RingRecord& record, Effects& effects);
  absl::Status on_begin(const RingRecord& record, Effects& effects);
  absl::Status on_piece(const RingRecord& record, Effects& effects);
  absl::Status on_cancel(const RingRecord& record, Effects& effects);
  absl::Status end_stream(uint64_t id, Effects& effects);

  Endpoint& endpoint_;
  const int rank_;
  P2pRingWriter out_;
  P2pRingReader in_;
  std::optional<Writing> writing_;
  HashMap<uint64_t, Incoming> streams_;
  uint64_t eager_stream_ = 0;  // The eager message whose pieces are arriving; 0 if none.
};

}  // namespace gradwire::collectives::cpu
