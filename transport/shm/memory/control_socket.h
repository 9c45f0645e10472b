#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// What two processes say to one another beside their shared memory: whole packets over a Unix socket
// (SOCK_SEQPACKET), whose end tells at once that the other process is gone. Integers are those of the
// machine.
//
//   packet    from     bytes  descriptors
//   hello     both     32     the memory of this end's ring (ring.h), sealed; the connecting end begins
//   doorbell  both     1      none. Look at the ring
//   segment   both     32     the memory of one more segment of this end's arena (arena.h), sealed
//   drop      both     8      none. A segment in which no block is out is not used any more
//
// Any other packet ends the connection, as does one with too many or too few descriptors.
struct HelloPacket {
  static constexpr uint32_t kMagic = 0x31735747;  // "GWs1"
  uint32_t magic = kMagic;
  uint32_t version = 1;
  uint64_t ring_bytes = 0;
  // How much of the other end's arena this end maps at most.
  uint64_t max_arena_bytes = 0;
  uint64_t reserved = 0;
};
static_assert(sizeof(HelloPacket) == 32);

struct SegmentPacket {
  static constexpr uint32_t kMagic = 0x41735747;  // "GWsA"
  uint32_t magic = kMagic;
  // Never used twice by one end of a connection.
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

// A packet that came, with what came along.
struct ControlPacket {
  static constexpr std::size_t kMaxBytes = 64;
  std::size_t size = 0;
  alignas(8) char bytes[kMaxBytes];
  std::vector<Descriptor> descriptors;

  // The packet as a T; nothing if it is none, or not with `count` descriptors.
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

// One end of such a socket. send() and ring() may be called by any thread, the rest by one at a time.
class ControlSocket {
 public:
  enum class Receipt { kPacket, kNothing, kEnd, kInvalid };

  void open(Descriptor socket);
  void close();
  // For the event loop; -1 when it is not open.
  int descriptor() const;

  // Never blocks. False when it is not open, or the other end has read so little lately that there is no
  // room.
  bool send(const void* packet, std::size_t bytes, int descriptor = -1);
  // A doorbell that finds no room is not needed: there are unread ones.
  void ring() { send("!", 1); }

  // The next packet. kInvalid: longer than any, or with more descriptors than any.
  Receipt receive(ControlPacket& packet);

  // Whether the process at the other end belongs to the same user as this one.
  absl::Status check_peer() const;

 private:
  mutable Mutex mutex_;
  Descriptor socket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
