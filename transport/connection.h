#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/transport/message.h"

namespace gradwire::transport {

class Connection;

// Maximum time until the listener of an accepted connection must return true from introduced().
inline constexpr absl::Duration kIntroductionTimeout = absl::Seconds(10);

// Receives the events of one connection. The transport calls it from its threads, one call at a time and in
// order, never from inside a call to the Connection, and without holding a lock. The calls must not block.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  virtual void on_message(Connection& connection, Message message) = 0;
  // The header of a message has arrived, and some of its buffers have not. `bytes`: the size of the message,
  // as Message::byte_size(); `arrived`: how many of them have arrived, apart from those on stripes. Called at
  // most once for a message; on_message() follows unless the connection ends. Not called for a message that
  // arrives at once: over "shm" one whose large buffers were all put into the arena, and over "loopback" any.
  virtual void on_arriving(Connection& /*connection*/, const std::string& /*header*/, uint64_t /*bytes*/,
                           uint64_t /*arrived*/) {}
  // As on_message(), for a message for whose buffers this process had no memory: they were dropped while they
  // arrived. `reason`: ResourceExhausted, for which is_local_shortage() is true. A listener whose protocol
  // cannot do without the message closes the connection, as this one does.
  virtual void on_lost(Connection& connection, std::string header, absl::Status reason);
  // Maximum size of the next message, if that is less than the transport's limits. The transports "shm" and
  // "tcp" call this before they allocate memory for a message, on the thread of the other calls.
  virtual uint64_t max_message_bytes() const { return std::numeric_limits<uint64_t>::max(); }
  // Whether the peer has identified itself, if the protocol above requires that. Called once for an accepted
  // connection, kIntroductionTimeout after it was accepted, on the thread of the other calls. If it returns
  // false, the connection is closed.
  virtual bool introduced() const { return true; }
  // The last call. `reason` is the reason given to the local close(); Unavailable, with the address and the
  // cause, if the peer closed the connection, died or could not be reached; InvalidArgument if the peer sent
  // an invalid frame; DeadlineExceeded if it did not identify itself in time.
  virtual void on_closed(Connection& connection, absl::Status reason) = 0;
};

// A bidirectional stream of messages between two processes (or within one). Messages arrive complete, exactly
// once, and in the order of their send() calls. Thread-safe. The transport keeps an open connection alive.
// The connection keeps its listener alive until on_closed() has returned.
class Connection {
 public:
  virtual ~Connection() = default;

  // Queues a message and returns its ticket; never blocks. Owned buffers may be read until they have been
  // sent. Borrowed buffers may be read until then or until capture() of the ticket. While the connection is
  // being established, messages are queued. Unavailable if the connection is closed; ResourceExhausted for a
  // message over the transport's limits, or if no memory is left.
  virtual absl::StatusOr<uint64_t> send(Message message) = 0;

  // Copies the unsent parts of the borrowed buffers of the message with this ticket. Afterwards the owner may
  // modify the buffers. Does nothing if the message has been sent or the connection is closed.
  // It may wait for a thread that is reading them, so a thread on duty (base/duty.h) must not call it.
  virtual void capture(uint64_t ticket) = 0;
  // Whether capture() would copy anything. Does not wait.
  virtual bool borrows(uint64_t ticket) = 0;

  // Closes the connection. Idempotent; the first reason wins. Queued messages are sent in the background for
  // at most `flush`; the rest is dropped. Then on_closed() is called. Messages that arrive from now on are
  // not delivered.
  virtual void close(absl::Status reason, absl::Duration flush = absl::ZeroDuration()) = 0;

  // Allocates memory that is owned only by the caller, aligned to 64 bytes. Its bytes can be sent over this
  // connection without a copy if the buffer is sent as it was returned, as owned, and no other object holds
  // its owner. Otherwise it is sent like any other buffer. ResourceExhausted if no memory is left.
  virtual absl::StatusOr<Buffer> allocate(std::size_t size);

  // Number of bytes that were passed to send() but have not been sent; 0 for transports that do not count
  // them. It grows if a peer sends requests but does not read the answers.
  virtual std::size_t queued_bytes() { return 0; }

  // Number of bytes received so far, including those of incomplete messages; 0 for transports that do not
  // count them. Transports may leave out those of messages that arrive at once. May be called from any
  // thread.
  virtual uint64_t bytes_arrived() const { return 0; }

  // Whether queued_bytes() and bytes_arrived() count a large buffer only when all of it has been sent or
  // received, because nothing is known of its parts.
  virtual bool counts_whole_buffers() const { return false; }

  // The large buffers that found no room in the memory that is shared with the peer, so that they were sent
  // in parts, which is slower: their bytes, and when the last one was sent, on Clock::system(). A buffer that
  // waits and tries again counts each time. No room is left if the peer keeps many received buffers, or if
  // the system gives no memory. Only the transport "shm" has such memory. May be called from any thread.
  struct NoRoom {
    uint64_t bytes = 0;
    absl::Time last = absl::InfinitePast();
  };
  virtual NoRoom no_room() const { return {}; }

  // The process at the other end, as far as it has proved who it is. For an accepted connection it is known
  // before the accept handler is called; for the other end, before the first message arrives. May be called
  // from any thread.
  virtual security::PeerIdentity peer() const { return {}; }

  // Address of the peer, for messages and logs.
  virtual std::string peer_address() const = 0;
};

inline void ConnectionListener::on_lost(Connection& connection, std::string /*header*/, absl::Status reason) {
  connection.close(std::move(reason));
}

inline absl::StatusOr<Buffer> Connection::allocate(std::size_t size) {
  if (size == 0) return Buffer();
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  void* const memory = rounded < size ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for a buffer");
  return Buffer(memory, size, std::shared_ptr<void>(memory, std::free));
}

}  // namespace gradwire::transport
