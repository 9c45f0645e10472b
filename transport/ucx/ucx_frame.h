#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/token/record.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

// The format of the transport's data: active messages of UCX, each with a head of 32 bytes and data. Integers
// are little-endian.
//
//   offset  bytes  content
//   0       4      magic: the characters "GWu1"
//   4       1      version: 1
//   5       1      kind: 0 a message, 1 hello, 2 goodbye, 3 a buffer, 4 a message of the handshake
//   6       2      reserved: 0
//   8       8      sequence number: from 1 on, increasing by one with each message and the goodbye; a buffer
//                  has that of its message; 0 for hello and the handshake
//   16      8      message: h, the length of its header; buffer, handshake: its length; otherwise 0
//   24      4      message: n, the number of buffers; buffer: its index; otherwise 0
//   28      4      reserved: 0
//
// The data of a message are n lengths of 8 bytes, the header, and the buffers that are shorter than
// kSeparateFrom, in order. Each longer buffer follows as a separate active message, by rendezvous; its data
// are the buffer. Hello precedes the messages of each end; goodbye is the last one if the end closes with a
// flush. Both have no data. The data of a message of the handshake are one record (security/token/record.h),
// sent by the eager protocol; ucx_opening.h says how a connection begins.
//
// UCX may reorder the active messages of a connection, since it may use several paths. The sequence numbers
// restore the order.
struct UcxHead {
  static constexpr std::size_t kBytes = 32;
  static constexpr uint64_t kSeparateFrom = uint64_t{64} << 10;

  static constexpr uint64_t kMaxHandshakeBytes = security::Record::kHeaderBytes + security::Record::kMaxBody;

  enum class Kind : uint8_t { kMessage, kHello, kGoodbye, kBuffer, kHandshake };

  Kind kind = Kind::kMessage;
  uint64_t sequence = 0;
  uint64_t length = 0;
  uint32_t number = 0;

  std::array<char, kBytes> encode() const;
  // Returns InvalidArgument with the reason for an invalid head.
  static absl::StatusOr<UcxHead> parse(absl::string_view bytes);

  // Checks whether `data_bytes` bytes of data can follow this head and are within the limits. Only the number
  // of a message's buffers is known at this time.
  absl::Status check_data(uint64_t data_bytes, const Limits& limits) const;
};

// Encodes the data of a message.
std::string encode_ucx_frame(const Message& message);

// The parsed data of a message. The views refer to the data.
struct UcxFrame {
  std::vector<uint64_t> sizes;
  absl::string_view header;
  // The short buffers, concatenated.
  absl::string_view buffers;

  // InvalidArgument for malformed data or a message over a limit. REQUIRES: head.check_data() returned OK.
  static absl::StatusOr<UcxFrame> parse(const UcxHead& head, absl::string_view data, const Limits& limits);
};

}  // namespace gradwire::transport
