#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"

namespace gradwire::collectives::cpu {

// The channel of an Endpoint that serves one group alone.
inline constexpr uint64_t kShmChannel = 0;

// Longer messages go in pieces.
inline constexpr std::size_t kShmWholeBytes = kRingPieceBytes / 2;
// Some of the messages that a rank may leave unanswered are kept for those that are begun without being asked
// for.
inline constexpr std::size_t kShmMaxPendingRts = kMaxPendingRts - kEagerWindow / kShmWholeBytes;

// The two rings between this rank and another one. Writes what lies in the rank's outbox, and takes what
// comes to the endpoint. A long message goes in pieces, so that the reader copies the first while the writer
// copies the next; the pieces go into the memory of the receive, or are held until one is found.
//
// Not thread-safe. The payload of a kDeliver effect lies in the ring until read() or try_take() has returned.
class ShmPort {
 public:
  ShmPort(Endpoint& endpoint, int rank, const P2pRing& out, const P2pRing& in)
      : endpoint_(endpoint), rank_(rank), out_(out), in_(in) {}

  // ---- Writing.

  // Writes the message at once, if it is short, nothing waits, and there is room for it.
  bool try_write(int64_t tag, Span data);
  // Writes what there is room for; whether it wrote anything.
  bool flush(Effects& effects);
  // Whether something waits for room.
  bool has_more() const { return writing_.has_value() || endpoint_.sends().outboxes().has(rank_); }
  // A message has been begun, and not all of it is written.
  bool writing() const { return writing_.has_value(); }
  // Lets go of the data of a message that is being written.
  void retract(const SendPtr& send, Effects& effects);

  // ---- Reading.

  bool has_record() const { return in_.has_record(); }
  // Takes the message at the head of the ring, if it is this one and was sent whole. `wake`: the writer waits
  // for room.
  bool try_take(int64_t tag, Span data, Effects& effects, bool& wake);
  bool next_is_eager() const;
  // Takes one record. InvalidArgument when the other rank breaks the protocol. REQUIRES: has_record()
  absl::Status read(Effects& effects, bool& wake);
  // A receive has been found for a message: its pieces go there. Whether they must be asked for.
  bool clear(const ReceivePtr& receive, uint64_t message, Effects& effects);
  // Nobody wants the message. Whether its sender must be told: it has not begun.
  bool drop(uint64_t message);

  P2pRingWriter& out() { return out_; }
  const P2pRingReader& in() const { return in_; }
  // Forgets what is under way.
  void clear();

 private:
  struct Writing {
    SendPtr send;
    std::size_t written = 0;
  };
  // A message that comes in pieces.
  struct Stream {
    uint64_t size = 0;
    uint64_t got = 0;
    bool unasked = false;  // It came after kBegin.
    bool unwanted = false;
    ReceivePtr receive;            // Once it is matched.
    std::unique_ptr<char[]> held;  // Until then.
  };

  // Writes the next entry of the outbox, or begins to; false without room.
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
  absl::flat_hash_map<uint64_t, Stream> streams_;
  uint64_t unasked_ = 0;  // The stream that was not asked for and goes on; 0: none.
};

}  // namespace gradwire::collectives::cpu
