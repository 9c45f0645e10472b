#pragma once

#include <cstddef>
#include <cstdint>

namespace gradwire {

// Limits on the data that a process accepts from another process. They are checked before memory is allocated
// for the data. A message that exceeds a limit closes its connection with InvalidArgument, which names the
// limit.
struct Limits {
  // Maximum size of the serialised envelope of one message, in bytes. The envelope is everything except the
  // buffers of large tensors.
  std::size_t max_header_bytes = std::size_t{64} << 20;
  // Maximum number of buffers of one message.
  std::size_t max_buffers = 65'536;
  // Maximum size of one buffer, and of all buffers of one message together, in bytes.
  uint64_t max_buffer_bytes = uint64_t{1} << 37;
  uint64_t max_message_bytes = uint64_t{1} << 38;
  // Maximum size, in bytes of memory, of the messages that an agent holds because it does not know their
  // sender, or a worker that they name, yet: for one connection, and for all connections together. A message
  // that exceeds it closes its connection with ResourceExhausted.
  uint64_t max_held_bytes = uint64_t{1} << 30;
  uint64_t max_held_bytes_in_all = uint64_t{4} << 30;
  // Maximum number of incoming connections whose peer has not been admitted. Further connections are closed
  // at once.
  std::size_t max_unadmitted = 4096;
  // Maximum number of accepted sockets that have not proved who they are yet, in all and from one address.
  // Further sockets are closed at once, or replace one that has waited longer, so that a process that opens
  // many sockets does not keep others out.
  std::size_t max_arrivals = 256;
  std::size_t max_arrivals_per_address = 128;
  // Maximum number of connections from one address. Further ones are refused.
  std::size_t max_connections_per_address = 4096;
};

// Maximum depth of nested values.
inline constexpr int kMaxValueDepth = 32;

}  // namespace gradwire
