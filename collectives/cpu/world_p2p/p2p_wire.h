#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/transport/message.h"

// The protocol between the ranks of a WorldP2p. This file is its specification.
//
// A rank connects to each rank to which it sends, so that between two ranks there are up to two connections.
// The rank that connects is the sender of the connection, the other end its receiver. Every transport message
// begins with a frame of kFrameBytes bytes in its header, integers little-endian:
//
//   offset  bytes  content
//   0       2      magic: "Gm"
//   2       1      version: 1
//   3       1      kind (p2p/frame.h: FrameKind)
//   4       4      code: an absl::StatusCode
//   8       8      channel
//   16      8      tag, signed
//   24      8      size, in bytes
//   32      8      id
//
// Fields that a kind does not use are zero. A payload of `size` bytes follows in the header, if it has up to
// kInlineBytes, or is the message's only buffer. The transports refuse longer headers and more buffers.
//
// 1. The sender first sends kHello, followed by kTokenBytes bytes: the world's secret, by which the receiver
//    recognises a member of its world. Then it waits for kWelcome.
// 2. The receiver answers with kWelcome.
// 3. Then the protocol of p2p/frame.h follows, without kBegin: the sender sends kEager, kRts, kData and
//    kCancel, the receiver kCts, kNack and kCredit.
// 4. An end that leaves normally sends kGoodbye last.
// The receiver closes the connection of a sender that violates the protocol. Only messages on the same
// connection are ordered relative to one another.
namespace gradwire::collectives::cpu {

inline constexpr std::size_t kFrameBytes = 40;
inline constexpr std::size_t kTokenBytes = 64;
// Longer payloads are sent as a buffer. For shorter ones a copy behind the frame is cheaper.
inline constexpr std::size_t kInlineBytes = 4096;
inline constexpr std::size_t kMaxHeaderBytes = kFrameBytes + kInlineBytes;

// Encodes the frame, and reserves `more` bytes behind it.
std::string encode_frame(const Frame& frame, std::size_t more = 0);

// Returns the frame of a received message, after checking it and the size of its payload. InvalidArgument,
// with the reason, if it is malformed.
absl::StatusOr<Frame> parse_frame(const transport::Message& message);

// Compares two secrets, in a time that does not depend on their contents.
bool same_secret(absl::string_view a, absl::string_view b);

}  // namespace gradwire::collectives::cpu
