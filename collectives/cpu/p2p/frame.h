#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

// The frames with which ranks exchange messages, by the eager and the rendezvous protocol. Two carriers bring
// frames to other ranks, in order: connections (world_p2p/p2p_wire.h) and rings in shared memory
// (shm_p2p/p2p_ring.h).
//
// Eager protocol: a short message is sent at once, as kEager. If no receive is posted for it, it waits at the
// receiver.
//
// Rendezvous protocol, for longer messages:
// 1. The sender announces the message with kRts (ready to send).
// 2. When a receive has been found for it, the receiver answers with kCts (clear to send). It answers with
//    kNack if it does not want the message.
// 3. The sender answers kCts with kData.
// Until then the sender may cancel the message with kCancel. kCancel may cross kCts or kNack: after kCancel
// no kData follows, and answers to the message are ignored.
//
//   sender                     receiver
//   kRts id 7, 1 MiB      ->   waits for a receive with this channel, tag and source
//                         <-   kCts id 7
//   kData id 7, payload   ->   the receive is done
//
// Flow control: a sender may have at most kEagerWindow bytes of eager messages that the receiver has not
// returned with kCredit. Each message is charged kMessageCost bytes in addition to its size. A message that
// does not fit the window uses the rendezvous protocol, and at most kMaxPendingRts messages may be announced
// and unanswered. A receiver closes its exchange with a sender that exceeds these limits.
namespace gradwire::collectives::cpu {

enum class FrameKind : uint8_t {
  // First frame from the sender of a connection: its rank in `tag`, the number of ranks in `size`. The
  // world's secret follows.
  kHello = 1,
  // From the receiver of a connection: the sender may send frames.
  kWelcome = 2,
  // An eager message, with its payload.
  kEager = 3,
  // Announces a message of `size` bytes. `id` is not zero; the sender never uses it again for this receiver.
  kRts = 4,
  // To the sender: send the data of `id`.
  kCts = 5,
  // To the sender: the message `id` is not wanted; `code` is the reason. With InvalidArgument, `size` is the
  // size of the receive.
  kNack = 6,
  // The payload of `id`, sent after kCts. Rings: the next bytes of `id`.
  kData = 7,
  // The sender has cancelled the message `id`, and sends no more of it; `code` is the reason.
  kCancel = 8,
  // To the sender: returns `size` bytes of the window, whose messages have been received.
  kCredit = 9,
  // Connections, both ends: the last frame of a rank that leaves normally.
  kGoodbye = 10,
  // Rings: begins an eager message of `size` bytes, which follows in kData records, before any other message.
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

// Whether `code` is the code of an error, as kNack and kCancel must carry.
inline bool is_error_code(uint64_t code) {
  return code > 0 && code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated);
}

}  // namespace gradwire::collectives::cpu
