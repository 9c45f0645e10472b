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

// For tests: the other end of a connection through shared memory, without manners. It connects to a listening
// transport, or is one that a RawListener accepted, and does what it is told. Not thread-safe.
class RawPeer {
 public:
  // Unconnected if that fails.
  explicit RawPeer(const std::string& address);
  // Takes over a socket that was accepted.
  explicit RawPeer(Descriptor socket) : socket_(std::move(socket)) {}

  // Sends one packet, with copies of the descriptors. False when it cannot.
  bool send(const void* bytes, std::size_t size, const std::vector<int>& descriptors = {});
  template <class T>
  bool send(const T& packet, const std::vector<int>& descriptors = {}) {
    return send(&packet, sizeof(packet), descriptors);
  }

  // Makes a ring of this end and says hello as it should be.
  void say_hello(std::size_t ring_bytes, std::size_t max_arena_bytes);
  // Takes in what has come: the other end's hello and its segments, which are mapped. False when there is
  // nothing.
  bool receive();
  // As receive(), after waiting for at most a minute. False when the other end has closed.
  bool wait_and_receive();
  // Whether the other end closes within a minute. Takes in what comes before.
  bool is_closed_by_peer();
  void close() { socket_.reset(); }
  bool ended() const { return ended_ || !socket_.valid(); }

  // Of this end; size 0 before say_hello().
  const SharedMemory& own_ring() const { return own_ring_; }
  // Another mapping of it, for another thread.
  SharedMemory own_ring_again() const;
  // Of the other end; size 0 before its hello came.
  const SharedMemory& other_ring() const { return other_ring_; }
  const std::vector<SharedMemory>& other_segments() const { return other_segments_; }

  char* own_line(std::size_t index) const {
    return own_ring_.data() + kLinesOffset + index % own_line_count() * kLineBytes;
  }
  std::size_t own_line_count() const { return (own_ring_.size() - kLinesOffset) / kLineBytes; }
  // Writes a record at the line that comes after the last such one. The length that it claims may differ from
  // that of what it holds.
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

// For tests: the plain socket that transports connect to instead of another transport. Not thread-safe.
class RawListener {
 public:
  RawListener();
  // Empty when it cannot listen.
  const std::string& address() const { return address_; }
  // Waits for the next one that connects.
  std::unique_ptr<RawPeer> accept();

 private:
  std::string address_;
  Descriptor socket_;
};

// A list entry and a kStart, as bytes.
std::string list_entry(uint64_t size, uint64_t place, uint64_t block);
std::string start_of(uint64_t header_bytes, uint64_t buffers);

}  // namespace gradwire::transport
