#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// The packets that two processes exchange besides their shared memory, over a Unix socket (SOCK_SEQPACKET).
// The end of the socket shows at once that the other process is gone. Integers have the byte order of the
// machine.
//
//   packet    from     bytes  descriptors and meaning
//   hello     both     32     the memory of this end's ring (ring.h), sealed; the client sends first
//   doorbell  both     1      none: check the ring
//   segment   both     32     the memory of a new segment of this end's arena (arena.h), sealed
//   drop      both     8      none: a segment without sent blocks is not used any more
//
// Any other packet, or one with a wrong number of descriptors, closes the connection.
struct HelloPacket {
  static constexpr uint32_t kMagic = 0x31735747;  // "GWs1"
  uint32_t magic = kMagic;
  uint32_t version = 2;
  uint64_t ring_bytes = 0;
  // Maximum size of the peer's arena that this end maps.
  uint64_t max_arena_bytes = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(HelloPacket) == 32);

struct SegmentPacket {
  static constexpr uint32_t kMagic = 0x41735747;  // "GWsA"
  uint32_t magic = kMagic;
  // The id of the segment. One end of a connection never uses an id twice.
  uint32_t segment = 0;
  uint64_t bytes = 0;
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
};
static_assert(sizeof(SegmentPacket) == 32);

struct DropPacket {
  static constexpr uint32_t kMagic = 0x44735747;  // "GWsD"
  uint32_t magic = kMagic;
  uint32_t segment = 0;
};
static_assert(sizeof(DropPacket) == 8);

// A received packet with its descriptors.
struct ControlPacket {
  static constexpr std::size_t kMaxBytes = 64;
  std::size_t size = 0;
  alignas(8) char bytes[kMaxBytes];
  std::vector<Descriptor> descriptors;

  // Returns the packet as a T; nullopt if it is not a T or does not have `count` descriptors.
  template <class T>
  absl::optional<T> as(std::size_t count) const {
    T value;
    if (size != sizeof(T) || descriptors.size() != count) return absl::nullopt;
    __builtin_memcpy(&value, bytes, sizeof(T));
    if (value.magic != T::kMagic) return absl::nullopt;
    return value;
  }
  bool is_doorbell() const { return size == 1 && descriptors.empty(); }
};

// One end of such a socket. send() and ring() may be called by any thread, the other methods by one thread at
// a time.
class ControlSocket {
 public:
  enum class Receipt { kPacket, kNothing, kEnd, kInvalid };

  void open(Descriptor socket);
  void close();
  // The descriptor for the event loop; -1 if the socket is not open.
  int descriptor() const;

  // Sends a packet; never blocks. Returns false if the socket is not open or its buffer is full.
  bool send(const void* packet, std::size_t bytes, int descriptor = -1);
  // If the buffer is full, the doorbell is not needed: there are unread packets.
  void ring() { send("!", 1); }

  // Receives the next packet. kInvalid: the packet is longer, or has more descriptors, than any valid packet.
  Receipt receive(ControlPacket& packet);

  // Returns the user of the process at the other end. Unavailable if the socket is not open.
  absl::StatusOr<uid_t> peer_user() const;

 private:
  mutable Mutex mutex_;
  Descriptor socket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
