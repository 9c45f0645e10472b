#include "gradwire/transport/ucx/ucx_frame.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/common/message_sizes.h"
#include "gradwire/transport/tcp/wire/frame_format.h"

namespace gradwire::transport {
namespace {

constexpr char kMagic[4] = {'G', 'W', 'u', '1'};
constexpr char kVersion = 1;
constexpr std::size_t kSizeBytes = 8;

using frame_format::read_integer;
using frame_format::write_integer;

}  // namespace

std::array<char, UcxHead::kBytes> UcxHead::encode() const {
  std::array<char, kBytes> bytes = {};
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic));
  bytes[4] = kVersion;
  bytes[5] = static_cast<char>(kind);
  write_integer<uint64_t>(bytes.data() + 8, sequence);
  write_integer<uint64_t>(bytes.data() + 16, length);
  write_integer<uint32_t>(bytes.data() + 24, number);
  return bytes;
}

absl::StatusOr<UcxHead> UcxHead::parse(absl::string_view bytes) {
  if (bytes.size() != kBytes || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot parse the head of an active message: got ", bytes.size(), " bytes, \"",
                     absl::CHexEscape(bytes.substr(0, 8)), "\"; the peer may not be a Gradwire worker"));
  }
  if (bytes[4] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("cannot parse a frame: got version ",
                                                   static_cast<unsigned char>(bytes[4]),
                                                   ", expected version ", int{kVersion}));
  }
  UcxHead head;
  // Reserved bytes must be 0, so that a later version can give them a meaning that this one refuses.
  const auto kind = static_cast<unsigned char>(bytes[5]);
  if (kind > static_cast<unsigned char>(Kind::kHandshake) || bytes[6] != 0 || bytes[7] != 0 ||
      read_integer<uint32_t>(bytes.data() + 28) != 0) {
    return absl::InvalidArgumentError("cannot parse a frame: unknown kind, or reserved bytes that are not 0");
  }
  head.kind = static_cast<Kind>(kind);
  head.sequence = read_integer<uint64_t>(bytes.data() + 8);
  head.length = read_integer<uint64_t>(bytes.data() + 16);
  head.number = read_integer<uint32_t>(bytes.data() + 24);
  return head;
}

absl::Status UcxHead::check_data(uint64_t data_bytes, const Limits& limits) const {
  switch (kind) {
    case Kind::kHandshake:
      if (sequence != 0 || number != 0 || length != data_bytes || length > kMaxHandshakeBytes) {
        return absl::InvalidArgumentError(absl::StrCat("malformed message of the handshake: got ", data_bytes,
                                                       " bytes, announced ", length, ", expected at most ",
                                                       kMaxHandshakeBytes));
      }
      return absl::OkStatus();
    case Kind::kHello:
      if (sequence != 0) return absl::InvalidArgumentError("malformed hello: its sequence number is not 0");
      [[fallthrough]];
    case Kind::kGoodbye:
      if (length != 0 || number != 0 || data_bytes != 0) {
        return absl::InvalidArgumentError("malformed hello or goodbye: it has data");
      }
      return absl::OkStatus();
    case Kind::kBuffer:
      // A shorter buffer belongs in the frame of its message. Accepting it here would let a peer create
      // many small operations.
      if (length != data_bytes || length < kSeparateFrom || length > limits.max_buffer_bytes ||
          number >= limits.max_buffers) {
        return absl::InvalidArgumentError(absl::StrCat("invalid buffer ", number, " of a message: got ",
                                                       data_bytes, " bytes, announced ", length));
      }
      return absl::OkStatus();
    case Kind::kMessage:
      break;
  }
  GRADWIRE_RETURN_IF_ERROR(MessageSizes(limits).begin(length, number));
  // The sizes of the buffers are in the data, so here only bounds can be checked. UcxFrame::parse() checks
  // the rest. begin() has limited both numbers, so nothing overflows.
  const uint64_t least = kSizeBytes * number + length;
  if (data_bytes < least || data_bytes - least > number * kSeparateFrom) {
    return absl::InvalidArgumentError(absl::StrCat("wrong size of a frame with a header of ", length,
                                                   " bytes and ", number, " buffers: got ", data_bytes,
                                                   " bytes"));
  }
  return absl::OkStatus();
}

std::string encode_ucx_frame(const Message& message) {
  std::size_t bytes = kSizeBytes * message.buffers.size() + message.header.size();
  for (const Buffer& buffer : message.buffers) {
    if (buffer.size() < UcxHead::kSeparateFrom) bytes += buffer.size();
  }
  std::string frame;
  frame.reserve(bytes);
  for (const Buffer& buffer : message.buffers) {
    char size[kSizeBytes];
    write_integer<uint64_t>(size, buffer.size());
    frame.append(size, sizeof(size));
  }
  frame += message.header;
  for (const Buffer& buffer : message.buffers) {
    if (buffer.size() < UcxHead::kSeparateFrom) {
      frame.append(static_cast<const char*>(buffer.data()), buffer.size());
    }
  }
  return frame;
}

absl::StatusOr<UcxFrame> UcxFrame::parse(const UcxHead& head, absl::string_view data, const Limits& limits) {
  UcxFrame frame;
  frame.sizes.resize(head.number);
  uint64_t short_bytes = 0;
  for (std::size_t i = 0; i < frame.sizes.size(); ++i) {
    frame.sizes[i] = read_integer<uint64_t>(data.data() + kSizeBytes * i);
    // There are at most max_buffers short buffers, so the sum cannot overflow.
    if (frame.sizes[i] < UcxHead::kSeparateFrom) short_bytes += frame.sizes[i];
  }
  GRADWIRE_RETURN_IF_ERROR(check_message_sizes(head.length, frame.sizes, limits));
  data.remove_prefix(kSizeBytes * frame.sizes.size());
  frame.header = data.substr(0, head.length);
  frame.buffers = data.substr(head.length);
  if (frame.buffers.size() != short_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("wrong size of the short buffers of a frame: got ",
                                                   frame.buffers.size(), " bytes, announced ", short_bytes));
  }
  return frame;
}

}  // namespace gradwire::transport
