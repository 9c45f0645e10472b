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

// Limits on what one other worker, a caller, may use of this worker at a time. The caller is the worker that
// its connection has proved to be. What exceeds a limit fails with ResourceExhausted, which names the limit:
// nothing of it runs, it is counted (rpc::AgentStatistics::calls_over_limit), and logged at most once a
// minute for each caller. A worker's calls to itself are not limited.
//
// A caller that keeps to its flow window (rpc::FlowOptions) does not meet the first two limits, because they
// must not be less than the flow window; otherwise the agent does not start (InvalidArgument). All workers of
// a group should have the same options. No value may be 0.
struct CallerLimits {
  // Maximum number of calls in flight: those that have arrived and are not answered. Calls that their
  // caller has given up count until their handlers end.
  uint64_t max_calls = 65'536;
  // Maximum number of bytes of the requests of these calls, as they arrived. A larger request is served when
  // the caller has no other call in flight.
  uint64_t max_call_bytes = uint64_t{4} << 30;
  // The same for messages of the framework that have to be served in turn, for example those of backward
  // passes. Flow windows do not count these messages.
  uint64_t max_messages = 262'144;
  uint64_t max_messages_bytes = uint64_t{64} << 30;
  // Maximum number of references to values of this worker that the caller holds: RRefs that it made here, and
  // those that others passed on to it. Also the maximum number of references that this worker holds because
  // the caller passed them on, and of messages about references that it has not answered.
  uint64_t max_references = uint64_t{1} << 20;
  // Maximum number of live autograd contexts that messages of the caller have opened here.
  uint64_t max_contexts = 65'536;
  // Maximum number of bytes of answers that wait for the caller to read them. Above it, calls fail until it
  // has read enough. If it goes on to send, without reading, its connection is closed.
  uint64_t max_unread_bytes = uint64_t{4} << 30;
};

// Maximum depth of nested values.
inline constexpr int kMaxValueDepth = 32;

}  // namespace gradwire
