#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

// Holds the sizes of one message against the limits. Each method is InvalidArgument with the limit that is
// passed.
class MessageSizes {
 public:
  explicit MessageSizes(const Limits& limits) : limits_(limits) {}

  // Once, first.
  absl::Status begin(uint64_t header_bytes, uint64_t buffer_count);
  // Each buffer.
  absl::Status add(uint64_t buffer_bytes) {
    total_ += buffer_bytes;
    if (buffer_bytes <= limits_.max_buffer_bytes && total_ <= limits_.max_message_bytes &&
        total_ >= buffer_bytes) {
      return absl::OkStatus();
    }
    return refuse_buffer(buffer_bytes);
  }

 private:
  absl::Status refuse_buffer(uint64_t buffer_bytes) const;

  const Limits& limits_;
  uint64_t total_ = 0;
};

absl::Status check_message_sizes(uint64_t header_bytes, absl::Span<const uint64_t> buffer_sizes,
                                 const Limits& limits);
absl::Status check_message_sizes(const Message& message, const Limits& limits);

}  // namespace gradwire::transport
