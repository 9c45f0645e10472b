#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring.h"
#include "gradwire/transport/shm/memory/shared_memory.h"

namespace gradwire::transport {

// For tests: the peer of a connection through shared memory, under control of the test, so that it can
// violate the protocol. It connects to a listening transport, or wraps a socket that a RawListener accepted.
// Not thread-safe.
class RawPeer {
 public:
  // Connects to `address`; stays unconnected if that fails.
  explicit RawPeer(const std::string& address);
  // Takes over an accepted socket.
  explicit RawPeer(Descriptor socket) : socket_(std::move(socket)) {}

  // Sends one packet with duplicates of the descriptors. Returns false if that fails.
  bool send(const void* bytes, std::size_t size, const std::vector<int>& descriptors = {});
  template <class T>
  bool send(const T& packet, const std::vector<int>& descriptors = {}) {
    return send(&packet, sizeof(packet), descriptors);
  }

  // Creates a ring of this end and sends a valid hello.
  void send_hello(std::size_t ring_bytes, std::size_t max_arena_bytes);
  // Receives one packet without waiting: the transport's hello or one of its segments, which are mapped.
  // Returns false if no packet has arrived.
  bool receive();
  // As receive(), but waits for at most one minute. Returns false if the transport has closed the socket.
  bool wait_and_receive();
  // Whether the transport closes the socket within one minute. Receives the packets that arrive before that.
  bool is_closed_by_peer();
  void close() { socket_.reset(); }
  bool ended() const { return ended_ || !socket_.valid(); }

  // The ring of this end; size 0 before send_hello().
  const SharedMemory& own_ring() const { return own_ring_; }
  // A second mapping of the own ring, for another thread.
  SharedMemory second_mapping_of_own_ring() const;
  // The ring of the transport; size 0 before its hello was received.
  const SharedMemory& other_ring() const { return other_ring_; }
  const std::vector<SharedMemory>& other_segments() const { return other_segments_; }

  char* own_line(std::size_t index) const {
    return own_ring_.data() + kLinesOffset + index % own_line_count() * kLineBytes;
  }
  std::size_t own_line_count() const { return (own_ring_.size() - kLinesOffset) / kLineBytes; }
  // Writes a record at the line after the previous record. The claimed length may differ from the real one.
  void put_record(uint8_t kind, uint32_t buffers, uint32_t length, const std::string& payload);
  void put_record(RecordKind kind, uint32_t buffers, const std::string& payload) {
    put_record(static_cast<uint8_t>(kind), buffers, static_cast<uint32_t>(payload.size()), payload);
  }
  void ring() { send("!", 1); }

 private:
  void take(ControlPacket& packet);

  Descriptor socket_;
  bool ended_ = false;
  Descriptor own_descriptor_;
  SharedMemory own_ring_;
  SharedMemory other_ring_;
  std::vector<SharedMemory> other_segments_;
  std::size_t line_ = 0;
};

// For tests: a plain socket that transports connect to as if it were another transport. Not thread-safe.
class RawListener {
 public:
  RawListener();
  // Empty if listening failed.
  const std::string& address() const { return address_; }
  // Waits for the next connection.
  std::unique_ptr<RawPeer> accept();

 private:
  std::string address_;
  Descriptor socket_;
};

// The encoded bytes of a list entry and of a kStart record.
std::string list_entry(uint64_t size, uint64_t location, uint64_t block);
std::string start_of(uint64_t header_bytes, uint64_t buffers);

}  // namespace gradwire::transport
