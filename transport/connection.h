#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

class Connection;

// How long a connection that was accepted may take until its listener says introduced().
inline constexpr absl::Duration kIntroductionTimeout = absl::Seconds(10);

// Hears what happens on one connection. Calls come from the transport's threads, one at a time and in order,
// never from inside a call to the Connection, and with no lock held. They must not block.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  virtual void on_message(Connection& connection, Message message) = 0;
  // The bytes that a message may have which begins to arrive now, if that is less than the transport's limits
  // say. Asked before memory is allocated for it, on the thread of the other calls, by the transports "shm"
  // and "tcp".
  virtual uint64_t max_message_bytes() const { return std::numeric_limits<uint64_t>::max(); }
  // Whether the other end has said who it is, as far as the protocol above asks for that. Asked once for a
  // connection that was accepted, kIntroductionTimeout later and on the thread of the other calls; the answer
  // false ends the connection.
  virtual bool introduced() const { return true; }
  // The last call. `reason`: what the local close() was given; Unavailable when the other end closed, died or
  // could not be reached (with its address and the cause); InvalidArgument when it sent what no frame can be;
  // DeadlineExceeded when it did not introduce itself.
  virtual void on_closed(Connection& connection, absl::Status reason) = 0;
};

// One bidirectional stream of whole messages between two processes (or within one). Messages arrive whole,
// once, and in the order of their send() calls. Thread-safe. The transport keeps an open connection alive; it
// keeps its listener alive until on_closed has returned.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues a message; never blocks. Owned buffers are read until they are sent. Borrowed buffers are too, but
  // only until capture() of the returned ticket. While the connection is still being established messages are
  // queued. Unavailable once it is closed; ResourceExhausted for a message over the transport's limits, or
  // when there is no memory.
  virtual absl::StatusOr<uint64_t> send(Message message) = 0;

  // Copies what has not left yet of the borrowed buffers of the message with this ticket: afterwards their
  // owner may change them. Does nothing for a message that has left, or on a closed connection.
  virtual void capture(uint64_t ticket) = 0;

  // Ends the connection; idempotent, the first reason wins. What is queued is sent first for at most `flush`,
  // in the background; what then remains is dropped. on_closed follows. Nothing that arrives from now on is
  // delivered.
  virtual void close(absl::Status reason, absl::Duration flush = absl::ZeroDuration()) = 0;

  // Memory of the caller's alone, aligned to 64 bytes, from which a message to this connection may travel
  // without a copy: when the buffer is sent as it is returned, owned, and nobody else holds its owner.
  // Otherwise it is sent as any other. ResourceExhausted when there is none.
  virtual absl::StatusOr<Buffer> allocate(std::size_t size);

  // Bytes that send() has taken and that have not left yet; 0 where a kind does not count them. For those who
  // answer whoever asks: an end that asks and does not read makes this grow.
  virtual std::size_t queued_bytes() { return 0; }

  // Bytes that have come in so far, those of messages that are not complete too; 0 where a kind does not
  // count them. From any thread.
  virtual uint64_t bytes_arrived() const { return 0; }

  // Where the other end is, for messages to people.
  virtual std::string peer_address() const = 0;
};

inline absl::StatusOr<Buffer> Connection::allocate(std::size_t size) {
  if (size == 0) return Buffer();
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = rounded < size ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for a buffer");
  return Buffer(memory, size, std::shared_ptr<void>(memory, std::free));
}

}  // namespace gradwire::transport
