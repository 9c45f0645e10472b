#include "gradwire/transport/tcp/frame.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/tcp/frame_format.h"

namespace gradwire::transport {
namespace {

using frame_format::write_integer;

// So that a share's memory begins with a page where the buffer's does.
constexpr uint64_t kShareStep = 4096;

void append_prefix(std::string& out, char kind, int stripes, uint64_t header_bytes, std::size_t buffers) {
  char prefix[kFramePrefixBytes] = {};
  std::memcpy(prefix, frame_format::kMagic, sizeof(frame_format::kMagic));
  prefix[4] = frame_format::kVersion;
  prefix[5] = kind;
  prefix[6] = static_cast<char>(stripes);
  write_integer<uint64_t>(prefix + 8, header_bytes);
  write_integer<uint32_t>(prefix + 16, static_cast<uint32_t>(buffers));
  out.append(prefix, sizeof(prefix));
}

absl::Status over_limit(absl::string_view what, uint64_t amount, absl::string_view limit_name,
                        uint64_t limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("a frame announces ", what, " ", amount, ", over the limit ", limit_name, " = ", limit));
}

absl::Status check_buffer_size(uint64_t size, uint64_t& total, const Limits& limits) {
  if (size > limits.max_buffer_bytes) {
    return over_limit("a buffer's bytes as", size, "max_buffer_bytes", limits.max_buffer_bytes);
  }
  if (total > limits.max_message_bytes || size > limits.max_message_bytes - total) {
    return over_limit("its bytes in all as at least", std::max(total, size), "max_message_bytes",
                      limits.max_message_bytes);
  }
  total += size;
  return absl::OkStatus();
}

}  // namespace

StripeShare stripe_share(uint64_t buffer_bytes, int stripes, int index) {
  const auto shares = static_cast<uint64_t>(stripes) + 1;
  const uint64_t step = ((buffer_bytes + shares - 1) / shares + kShareStep - 1) / kShareStep * kShareStep;
  const uint64_t begin = std::min(buffer_bytes, step * static_cast<uint64_t>(index));
  return {begin, std::min(buffer_bytes - begin, step)};
}

void append_frame_start(std::string& out, const Message& message, const Striping& striping) {
  const bool striped = striping.stripes > 0 &&
                       std::any_of(message.buffers.begin(), message.buffers.end(),
                                   [&](const Buffer& buffer) { return striping.covers(buffer.size()); });
  append_prefix(out, frame_format::kMessageKind, striped ? striping.stripes : 0, message.header.size(),
                message.buffers.size());
  for (const Buffer& buffer : message.buffers) {
    char size[8];
    write_integer<uint64_t>(size,
                            buffer.size() | (striping.covers(buffer.size()) ? frame_format::kStripedBit : 0));
    out.append(size, sizeof(size));
  }
}

std::string encode_frame_start(const Message& message, const Striping& striping) {
  std::string out;
  append_frame_start(out, message, striping);
  return out;
}

std::string encode_control_frame(absl::string_view header) {
  std::string out;
  append_prefix(out, frame_format::kControlKind, 0, header.size(), 0);
  absl::StrAppend(&out, header);
  return out;
}

absl::Status check_frame_limits(uint64_t header_bytes, uint64_t buffer_count, const Limits& limits) {
  if (header_bytes > limits.max_header_bytes) {
    return over_limit("its header's bytes as", header_bytes, "max_header_bytes", limits.max_header_bytes);
  }
  if (buffer_count > limits.max_buffers) {
    return over_limit("its number of buffers as", buffer_count, "max_buffers", limits.max_buffers);
  }
  return absl::OkStatus();
}

absl::Status check_frame_limits(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                const Limits& limits) {
  GRADWIRE_RETURN_IF_ERROR(check_frame_limits(header_bytes, buffer_sizes.size(), limits));
  uint64_t total = header_bytes;
  for (uint64_t size : buffer_sizes) GRADWIRE_RETURN_IF_ERROR(check_buffer_size(size, total, limits));
  return absl::OkStatus();
}

absl::Status check_frame_limits(const Message& message, const Limits& limits) {
  GRADWIRE_RETURN_IF_ERROR(check_frame_limits(message.header.size(), message.buffers.size(), limits));
  uint64_t total = message.header.size();
  for (const Buffer& buffer : message.buffers) {
    GRADWIRE_RETURN_IF_ERROR(check_buffer_size(buffer.size(), total, limits));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::transport
