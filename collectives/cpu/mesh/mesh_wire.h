#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/collectives/cpu/p2p/frame.h"
#include "gradwire/transport/message.h"

// What the ranks of a mesh say to one another: this file is the protocol's specification.
//
// A rank connects to each rank that it sends to, so that between two ranks there are up to two connections.
// Whoever connects is the sender of the connection, the other end its receiver. Every transport message
// begins with a frame of kFrameBytes bytes in its header, integers little-endian:
//
//   offset  bytes  what
//   0       2      magic: "Gm"
//   2       1      version: 1
//   3       1      kind (p2p/frame.h: FrameKind)
//   4       4      code: an absl::StatusCode
//   8       8      channel
//   16      8      tag, signed
//   24      8      size, in bytes
//   32      8      id
//
// Fields that a kind does not use are zero. A payload of `size` bytes follows in the header, up to
// kInlineBytes, or is the message's only buffer. Longer headers and more buffers are refused by the
// transports.
//
// The sender says kHello first, with kTokenBytes bytes behind the frame: the world's secret, by which the
// receiver knows that the sender belongs to it. It says nothing more until kWelcome comes. Then follows the
// protocol of p2p/frame.h, without kBegin: the sender's frames are kEager, kRts, kData and kCancel, the
// receiver's kCts, kNack and kCredit. Each says kGoodbye last when it leaves in good order. The receiver ends
// the connection of a sender that breaks the protocol.
//
// Messages on one connection are in the order in which they were sent: that is what orders them against one
// another.
namespace gradwire::collectives::cpu {

inline constexpr std::size_t kFrameBytes = 40;
inline constexpr std::size_t kTokenBytes = 64;
// Longer payloads are a buffer: to copy shorter ones behind the frame costs less than that.
inline constexpr std::size_t kInlineBytes = 4096;
inline constexpr std::size_t kMaxHeaderBytes = kFrameBytes + kInlineBytes;

// The frame, with room for `more` bytes behind it.
std::string encode_frame(const Frame& frame, std::size_t more = 0);

// The frame of a message that came, after checking that it is one and that its payload is as long as it says.
// InvalidArgument that says what is wrong.
absl::StatusOr<Frame> parse_frame(const transport::Message& message);

// Whether both are the same; takes as long whatever they hold.
bool same_secret(absl::string_view a, absl::string_view b);

}  // namespace gradwire::collectives::cpu
