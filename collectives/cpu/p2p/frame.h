#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

// What ranks say to one another to exchange messages: the eager and the rendezvous protocol. Two carriers
// bring frames to other ranks, in order: connections (mesh/mesh_wire.h) and rings in shared memory
// (shm_p2p/p2p_ring.h).
//
// A short message goes at once, as kEager, and waits at the receiver for its receive. A longer one is
// announced with kRts (ready to send). The receiver answers with kCts (clear to send) when a receive has been
// found for it, or with kNack. The sender answers kCts with kData. Until then it may take the message back
// with kCancel, which may cross kCts or kNack: after it no kData comes, and answers to it are ignored.
//
//   sender                     receiver
//   kRts id 7, 1 MiB      ->   waits for a receive with this channel, tag and source
//                         <-   kCts id 7
//   kData id 7, payload   ->   the receive is done
//
// A sender has at most kEagerWindow bytes of messages that nobody asked for, each counted with kMessageCost
// bytes more, that the receiver has not returned with kCredit. Messages that would be more are announced, and
// at most kMaxPendingRts of these are unanswered. A receiver ends its exchange with a sender that exceeds
// this.
namespace gradwire::collectives::cpu {

enum class FrameKind : uint8_t {
  // From the sender of a connection: its rank in `tag`, the number of ranks in `size`; the world's secret
  // follows.
  kHello = 1,
  // From the receiver of a connection: the sender may begin.
  kWelcome = 2,
  // A message, with its payload.
  kEager = 3,
  // A message of `size` bytes is ready. `id`, not zero, names it between these two ranks, once.
  kRts = 4,
  // To the sender: send the data of `id`.
  kCts = 5,
  // To the sender: the message `id` is not wanted; `code` says why. With InvalidArgument, `size` is what
  // would have been taken.
  kNack = 6,
  // The payload of `id`, which was asked for. Rings: the next bytes of `id`.
  kData = 7,
  // No more of the message `id` comes, or nothing; `code` says why.
  kCancel = 8,
  // To the sender: `size` bytes of messages that were not asked for have been taken.
  kCredit = 9,
  // Connections, both ends: the last frame of a rank that leaves in good order.
  kGoodbye = 10,
  // Rings: a message of `size` bytes that comes at once, in kData records, before any other message.
  kBegin = 11,
};

// A frame without its payload. Fields that a kind does not use are zero.
struct Frame {
  FrameKind kind = FrameKind::kHello;
  uint32_t code = 0;  // An absl::StatusCode.
  uint64_t channel = 0;
  int64_t tag = 0;
  uint64_t size = 0;  // Bytes.
  uint64_t id = 0;
};

// The source of a receive that takes from all ranks.
inline constexpr int kAnyRank = -1;

inline constexpr uint64_t kEagerWindow = uint64_t{16} << 20;
inline constexpr uint64_t kMessageCost = 64;
inline constexpr std::size_t kMaxPendingRts = std::size_t{1} << 17;

// Whether this is the code of an error, as kNack and kCancel say one.
inline bool is_error_code(uint64_t code) {
  return code > 0 && code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace gradwire::collectives::cpu
