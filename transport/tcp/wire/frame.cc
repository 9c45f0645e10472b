#include "gradwire/transport/tcp/wire/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/transport/tcp/wire/frame_format.h"

namespace gradwire::transport {
namespace {

using frame_format::write_integer;

// Shares are aligned so that they begin at a page boundary if the buffer does.
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

}  // namespace gradwire::transport
