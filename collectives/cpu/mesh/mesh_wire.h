#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/transport/message.h"

// What the ranks of a mesh say to one another: this file is the protocol's specification.
//
// A rank connects to each rank that it sends to, so that between two ranks there are up to two connections. Whoever
// connects is the sender of the connection, the other end its receiver. Every transport message begins with a frame of
// kFrameBytes bytes in its header, integers little-endian:
//
//   offset  bytes  what
//   0       2      magic: "Gm"
//   2       1      version: 1
//   3       1      kind (FrameKind)
//   4       4      code: an absl::StatusCode
//   8       8      channel
//   16      8      tag, signed
//   24      8      size, in bytes
//   32      8      id
//
// Fields that a kind does not use are zero. A payload of `size` bytes follows in the header, up to kInlineBytes, or is the
// message's only buffer. Longer headers and more buffers are refused by the transports.
//
// The sender says kHello first and nothing more until kWelcome comes. Then each message goes as kEager, or as kAnnounce,
// which the receiver answers with kAsk when a receive has been found for it, or with kRefuse. kAsk is followed by kData.
// The sender may take back what it announced with kWithdraw, which may cross kAsk or kRefuse: after it no kData comes,
// and answers to it are ignored.
//
// A sender has at most kEagerWindow bytes of eager messages, each counted with kMessageCost bytes more, that the receiver
// has not returned with kCredit; messages that would be more are announced, and of these at most kMaxAnnounced are
// unanswered. The receiver ends the connection of who exceeds this.
//
// Messages on one connection are in the order in which they were sent: that is what orders them against one another.
namespace gradwire::collectives::cpu {

enum class FrameKind : uint8_t {
  // From the sender. Its rank in `tag`, the number of ranks in `size`; kTokenBytes bytes follow in the header, the
  // world's secret, by which the receiver knows that the sender belongs to it.
  kHello = 1,
  // From the receiver: it may begin.
  kWelcome = 2,
  // From the sender: a message, with its payload.
  kEager = 3,
  // From the sender: a message of `size` bytes. `id`, not zero, names it on this connection, once.
  kAnnounce = 4,
  // From the receiver: send the data of `id`.
  kAsk = 5,
  // From the receiver: it does not want the message `id`: why in `code`; if that is InvalidArgument, `size` is what it
  // would have taken.
  kRefuse = 6,
  // From the sender: the payload of `id`, which was asked for.
  kData = 7,
  // From the sender: the message `id` will not be sent; why in `code`.
  kWithdraw = 8,
  // From the receiver: `size` bytes of eager messages have been taken.
  kCredit = 9,
  // From both: the last frame of a rank that leaves in good order.
  kGoodbye = 10,
};

inline constexpr std::size_t kFrameBytes = 40;
inline constexpr std::size_t kTokenBytes = 64;
// Longer payloads are a buffer: to copy shorter ones behind the frame costs less than that.
inline constexpr std::size_t kInlineBytes = 4096;
inline constexpr std::size_t kMaxHeaderBytes = kFrameBytes + kInlineBytes;
inline constexpr uint64_t kEagerWindow = uint64_t{16} << 20;
inline constexpr uint64_t kMessageCost = 64;
inline constexpr std::size_t kMaxAnnounced = std::size_t{1} << 17;

struct Frame {
  FrameKind kind = FrameKind::kHello;
  uint32_t code = 0;
  uint64_t channel = 0;
  int64_t tag = 0;
  uint64_t size = 0;
  uint64_t id = 0;
};

// The frame, with room for `more` bytes behind it.
std::string encode_frame(const Frame& frame, std::size_t more = 0);

// The frame of a message that came, after checking that it is one and that its payload is as long as it says.
// InvalidArgument that says what is wrong.
absl::StatusOr<Frame> parse_frame(const transport::Message& message);

// Whether both are the same; takes as long whatever they hold.
bool same_secret(absl::string_view a, absl::string_view b);

// The payload of a kEager or kData message, with what keeps it. Moved only.
class Payload {
 public:
  Payload() = default;
  // REQUIRES: parse_frame() has accepted it.
  explicit Payload(transport::Message message) : message_(std::move(message)) {}
  // Of a message to oneself: `data` is what the sender gave, and is there while it is needed.
  Payload(void* data, std::size_t size) { message_.buffers.emplace_back(data, size, nullptr); }

  // Of what its sender takes back.
  static Payload copy_of(const void* data, std::size_t size) {
    Payload payload;
    payload.message_.header.reserve(kFrameBytes + size);
    payload.message_.header.resize(kFrameBytes);
    if (size > 0) payload.message_.header.append(static_cast<const char*>(data), size);
    return payload;
  }

  const void* data() const {
    return message_.buffers.empty() ? message_.header.data() + kFrameBytes : message_.buffers[0].data();
  }
  std::size_t size() const {
    if (!message_.buffers.empty()) return message_.buffers[0].size();
    return message_.header.size() <= kFrameBytes ? 0 : message_.header.size() - kFrameBytes;
  }

 private:
  transport::Message message_;
};

}  // namespace gradwire::collectives::cpu
