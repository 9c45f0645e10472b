#include "gradwire/transport/common/message_sizes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

absl::Status over_limit(absl::string_view what, uint64_t value, absl::string_view limit, uint64_t bound) {
  return absl::InvalidArgumentError(
      absl::StrCat("a message with ", value, " ", what, " is over the limit ", limit, " = ", bound));
}

}  // namespace

// On the receiving side the sizes come from the peer. They are checked one after the other, before memory
// is allocated for any of them, so that a hostile peer cannot use memory by announcing much.
absl::Status MessageSizes::begin(uint64_t header_bytes, uint64_t buffer_count) {
  if (header_bytes > limits_.max_header_bytes) {
    return over_limit("bytes of header", header_bytes, "max_header_bytes", limits_.max_header_bytes);
  }
  if (buffer_count > limits_.max_buffers) {
    return over_limit("buffers", buffer_count, "max_buffers", limits_.max_buffers);
  }
  total_ = header_bytes;
  if (total_ > limits_.max_message_bytes) {
    return over_limit("bytes", total_, "max_message_bytes", limits_.max_message_bytes);
  }
  return absl::OkStatus();
}

absl::Status MessageSizes::buffer_error(uint64_t buffer_bytes) const {
  if (buffer_bytes > limits_.max_buffer_bytes) {
    return over_limit("bytes in one buffer", buffer_bytes, "max_buffer_bytes", limits_.max_buffer_bytes);
  }
  // The sum may have overflowed.
  return over_limit("bytes", std::max(total_, buffer_bytes), "max_message_bytes", limits_.max_message_bytes);
}

absl::Status check_message_sizes(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                 const Limits& limits) {
  MessageSizes sizes(limits);
  GRADWIRE_RETURN_IF_ERROR(sizes.begin(header_bytes, buffer_sizes.size()));
  for (uint64_t size : buffer_sizes) GRADWIRE_RETURN_IF_ERROR(sizes.add(size));
  return absl::OkStatus();
}

absl::Status check_message_sizes(const Message& message, const Limits& limits) {
  MessageSizes sizes(limits);
  GRADWIRE_RETURN_IF_ERROR(sizes.begin(message.header.size(), message.buffers.size()));
  for (const Buffer& buffer : message.buffers) GRADWIRE_RETURN_IF_ERROR(sizes.add(buffer.size()));
  return absl::OkStatus();
}

}  // namespace gradwire::transport
