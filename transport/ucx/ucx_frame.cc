#include "gradwire/transport/ucx/ucx_frame.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/common/message_sizes.h"
#include "gradwire/transport/tcp/frame_format.h"

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
    return absl::InvalidArgumentError(absl::StrCat("an active message with a head of ", bytes.size(),
                                                   " bytes, \"", absl::CHexEscape(bytes.substr(0, 8)),
                                                   "\", arrived; is the other end a Gradwire worker?"));
  }
  if (bytes[4] != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of version ",
                                                   static_cast<unsigned char>(bytes[4]),
                                                   " arrived; this process knows version ", int{kVersion}));
  }
  UcxHead head;
  const auto kind = static_cast<unsigned char>(bytes[5]);
  if (kind > static_cast<unsigned char>(Kind::kBuffer) || bytes[6] != 0 || bytes[7] != 0 ||
      read_integer<uint32_t>(bytes.data() + 28) != 0) {
    return absl::InvalidArgumentError("a frame has a kind or reserved bytes that this process does not know");
  }
  head.kind = static_cast<Kind>(kind);
  head.sequence = read_integer<uint64_t>(bytes.data() + 8);
  head.length = read_integer<uint64_t>(bytes.data() + 16);
  head.number = read_integer<uint32_t>(bytes.data() + 24);
  return head;
}

absl::Status UcxHead::check_data(uint64_t data_bytes, const Limits& limits) const {
  switch (kind) {
    case Kind::kHello:
    case Kind::kGoodbye:
      if (length != 0 || number != 0 || data_bytes != 0) {
        return absl::InvalidArgumentError("a hello or goodbye has data");
      }
      return absl::OkStatus();
    case Kind::kBuffer:
      if (length != data_bytes || length < kSeparateFrom || length > limits.max_buffer_bytes ||
          number >= limits.max_buffers) {
        return absl::InvalidArgumentError(absl::StrCat("buffer ", number, " of a message announces ", length,
                                                       " bytes and has ", data_bytes));
      }
      return absl::OkStatus();
    case Kind::kMessage:
      break;
  }
  GRADWIRE_RETURN_IF_ERROR(MessageSizes(limits).begin(length, number));
  const uint64_t least = kSizeBytes * number + length;
  if (data_bytes < least || data_bytes - least > number * kSeparateFrom) {
    return absl::InvalidArgumentError(absl::StrCat("a frame with a header of ", length, " bytes and ", number,
                                                   " buffers has ", data_bytes, " bytes"));
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
    if (frame.sizes[i] < UcxHead::kSeparateFrom) short_bytes += frame.sizes[i];
  }
  GRADWIRE_RETURN_IF_ERROR(check_message_sizes(head.length, frame.sizes, limits));
  data.remove_prefix(kSizeBytes * frame.sizes.size());
  frame.header = data.substr(0, head.length);
  frame.buffers = data.substr(head.length);
  if (frame.buffers.size() != short_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a frame has ", frame.buffers.size(),
                                                   " bytes of short buffers and announces ", short_bytes));
  }
  return frame;
}

}  // namespace gradwire::transport
