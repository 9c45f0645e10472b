#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// What a process accepts from another before it allocates memory for it. A message over a limit ends its
// connection with InvalidArgument that names the limit.
struct Limits {
  // The serialised envelope of one message, in bytes: everything but the buffers of large tensors.
  std::size_t max_header_bytes = std::size_t{64} << 20;
  // The buffers of one message.
  std::size_t max_buffers = 65'536;
  // One buffer, and all buffers of one message together, in bytes.
  uint64_t max_buffer_bytes = uint64_t{1} << 37;
  uint64_t max_message_bytes = uint64_t{1} << 38;
};

// How deep values may be nested inside one another.
inline constexpr int kMaxValueDepth = 32;

}  // namespace gradwire
