#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
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
  enum class Receipt { kPacket, kNothing, kEnd, kInvalid, kNoDescriptors };
  // sendmsg(2), or another implementation of it.
  using SendCall = std::function<ssize_t(int socket, const msghdr* header, int flags)>;

  explicit ControlSocket(SendCall send_call = ::sendmsg) : send_call_(std::move(send_call)) {}

  void open(Descriptor socket);
  void close();
  // The descriptor for the event loop; -1 if the socket is not open.
  int descriptor() const;

  // Sends a packet; never blocks. Returns false if the socket is not open or its buffer is full.
  bool send(const void* packet, std::size_t bytes, int descriptor = -1);
  // Returns false if the kernel has no memory for the packet now: the peer was not rung, and must be later.
  // If the buffer is full or the socket closed, the doorbell is not needed: the peer finds unread packets, or
  // the end.
  bool ring();

  // Receives the next packet. kInvalid: the packet is longer, or has more descriptors, than any valid packet.
  // kNoDescriptors: this process has no number free for the packet's descriptors. The packet stays the next
  // one.
  Receipt receive(ControlPacket& packet);

  // Returns the user of the process at the other end. Unavailable if the socket is not open.
  absl::StatusOr<uid_t> peer_user() const;

 private:
  // Returns 0 or an errno.
  int try_send(const void* packet, std::size_t bytes, int descriptor);

  const SendCall send_call_;

  mutable Mutex mutex_;
  Descriptor socket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
