#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

// Checks the sizes of one message against the limits. The methods return InvalidArgument, which names the
// exceeded limit.
class MessageSizes {
 public:
  explicit MessageSizes(const Limits& limits) : limits_(limits) {}

  // Must be called once, before add().
  absl::Status begin(uint64_t header_bytes, uint64_t buffer_count);
  // Must be called for each buffer.
  absl::Status add(uint64_t buffer_bytes) {
    total_ += buffer_bytes;
    if (buffer_bytes <= limits_.max_buffer_bytes && total_ <= limits_.max_message_bytes &&
        total_ >= buffer_bytes) {
      return absl::OkStatus();
    }
    return buffer_error(buffer_bytes);
  }

 private:
  absl::Status buffer_error(uint64_t buffer_bytes) const;

  const Limits& limits_;
  uint64_t total_ = 0;
};

absl::Status check_message_sizes(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                 const Limits& limits);
absl::Status check_message_sizes(const Message& message, const Limits& limits);

}  // namespace gradwire::transport
