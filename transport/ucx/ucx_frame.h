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
#include "gradwire/transport/message.h"

namespace gradwire::transport {

// What this kind sends: active messages of UCX, each with a head of 32 bytes and data. Integers are
// little-endian.
//
//   offset  bytes  what
//   0       4      magic: the characters "GWu1"
//   4       1      version: 1
//   5       1      kind: 0 a message, 1 hello, 2 goodbye, 3 a buffer
//   6       2      reserved: 0
//   8       8      sequence: 0 for hello, then one more for each message, and for goodbye; of a buffer: its
//                  message's
//   16      8      of a message: h, the length of its header; of a buffer: its length; else 0
//   24      4      of a message: n, the number of buffers; of a buffer: its index; else 0
//   28      4      reserved: 0
//
// The data of a message: n lengths of 8 bytes, the header, and those buffers in order that are shorter than
// kSeparateFrom. Each of the others follows as an active message of its own, by rendezvous: its data is the
// buffer. Hello, the first that each end sends, and goodbye, the last one if it closes with a flush, have no
// data.
//
// UCX may deliver active messages of one connection in another order than they were sent in, since it may use
// several paths: the sequence numbers restore it.
struct UcxHead {
  static constexpr std::size_t kBytes = 32;
  static constexpr uint64_t kSeparateFrom = uint64_t{64} << 10;

  enum class Kind : uint8_t { kMessage, kHello, kGoodbye, kBuffer };

  Kind kind = Kind::kMessage;
  uint64_t sequence = 0;
  uint64_t length = 0;
  uint32_t number = 0;

  std::array<char, kBytes> encode() const;
  // InvalidArgument that says what is wrong.
  static absl::StatusOr<UcxHead> parse(absl::string_view bytes);

  // Whether so many bytes of data can follow this head, and are within the limits. Of a message's buffers
  // only the number is known then.
  absl::Status check_data(uint64_t data_bytes, const Limits& limits) const;
};

// The data of a message's frame.
std::string encode_ucx_frame(const Message& message);

// What a frame's data says. The views are into it.
struct UcxFrame {
  std::vector<uint64_t> sizes;
  absl::string_view header;
  // The short buffers, one behind the other.
  absl::string_view buffers;

  // InvalidArgument for what is no frame, or over a limit. REQUIRES: head.check_data was OK.
  static absl::StatusOr<UcxFrame> parse(const UcxHead& head, absl::string_view data, const Limits& limits);
};

}  // namespace gradwire::transport
