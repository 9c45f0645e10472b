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
  // Messages that an agent holds because it does not know yet who sent them, or whom they name: on one
  // connection, and on all together, in bytes of memory. A message beyond that ends its connection with
  // ResourceExhausted.
  uint64_t max_held_bytes = uint64_t{1} << 30;
  uint64_t max_held_bytes_in_all = uint64_t{4} << 30;
  // Connections that came in and whose other end has not been admitted. One more is closed at once.
  std::size_t max_unadmitted = 4096;
};

// How deep values may be nested inside one another.
inline constexpr int kMaxValueDepth = 32;

}  // namespace gradwire
