#include "gradwire/transport/shm/memory/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

// More than any valid packet has, so that extra descriptors are detected and closed.
constexpr std::size_t kDescriptorsTaken = 4;

struct Received {
  ssize_t bytes = 0;
  int error = 0;
  int flags = 0;
};

// Calls `take` with each descriptor of a message.
template <class Take>
void for_each_descriptor(msghdr& header, Take take) {
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int received;
      std::memcpy(&received, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      take(received);
    }
  }
}

Received receive_once(int socket, ControlPacket& packet, int flags, bool with_descriptors) {
  iovec part = {packet.bytes, sizeof(packet.bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsTaken * sizeof(int))];
  for (int reset = 0;;) {
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (with_descriptors) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
    }
    ssize_t got;
    {
      const ForkDelay delay;
      got = ::recvmsg(socket, &header, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      if (got >= 0) for_each_descriptor(header, [](int received) { own_descriptor(received); });
    }
    if (got < 0 && errno == EINTR) continue;
    // ECONNRESET is reported once if the peer closed without reading all data. Packets that it sent can still
    // be read.
    if (got < 0 && errno == ECONNRESET && reset++ == 0) continue;
    if (got < 0) return {.bytes = got, .error = errno};
    // All of them, also those of an invalid packet: they are open in this process, and `packet` closes them.
    for_each_descriptor(header, [&](int received) { packet.descriptors.emplace_back(received); });
    return {.bytes = got, .flags = header.msg_flags};
  }
}

}  // namespace

void ControlSocket::open(Descriptor socket) {
  MutexLock lock(mutex_);
  socket_ = std::move(socket);
}

// `socket` is declared before the lock, so the descriptor is closed without it.
void ControlSocket::close() {
  Descriptor socket;
  MutexLock lock(mutex_);
  socket = std::move(socket_);
}

int ControlSocket::descriptor() const {
  MutexLock lock(mutex_);
  return socket_.get();
}

bool ControlSocket::send(const void* packet, std::size_t bytes, int descriptor) {
  return try_send(packet, bytes, descriptor) == 0;
}

bool ControlSocket::ring() { return !is_shortage(try_send("!", 1, -1)); }

int ControlSocket::try_send(const void* packet, std::size_t bytes, int descriptor) {
  iovec part = {const_cast<void*>(packet), bytes};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
  }
  MutexLock lock(mutex_);
  if (!socket_.valid()) return EBADF;
  ssize_t sent;
  do {
    // It never waits, since callers hold locks. The lock keeps the descriptor open meanwhile.
    sent = send_call_(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  // A packet is sent as a whole.
  return sent < 0 ? errno : 0;
}

// A descriptor for which the receiver has no number free is lost: the kernel drops it and sets MSG_CTRUNC,
// and the sender has closed its own. So the packet must not be consumed before its descriptors are here:
// 1. Peek at the packet, without room for descriptors. MSG_CTRUNC then says that it has some.
// 2. If it has, peek again, with room. The kernel adds duplicates of its descriptors to this process. If some
//    are missing, close the others. The packet is still there.
// 3. Consume the packet. The kernel closes its own descriptors.
ControlSocket::Receipt ControlSocket::receive(ControlPacket& packet) {
  packet.size = 0;
  packet.descriptors.clear();
  const int socket = descriptor();
  if (socket < 0) return Receipt::kEnd;
  Received received = receive_once(socket, packet, MSG_PEEK, /*with_descriptors=*/false);
  if (received.bytes < 0) {
    return received.error == EAGAIN || received.error == EWOULDBLOCK ? Receipt::kNothing : Receipt::kEnd;
  }
  // Packets have at least one byte, so this is the end of the stream.
  if (received.bytes == 0) return Receipt::kEnd;
  bool too_many = false;
  if (received.flags & MSG_CTRUNC) {
    received = receive_once(socket, packet, MSG_PEEK, /*with_descriptors=*/true);
    too_many = packet.descriptors.size() >= kDescriptorsTaken;
    if ((received.flags & MSG_CTRUNC) && !too_many) {
      packet.descriptors.clear();
      return Receipt::kNoDescriptors;
    }
  }
  received = receive_once(socket, packet, 0, /*with_descriptors=*/false);
  if (received.bytes <= 0) return Receipt::kEnd;
  packet.size = static_cast<std::size_t>(received.bytes);
  return too_many || (received.flags & MSG_TRUNC) ? Receipt::kInvalid : Receipt::kPacket;
}

// The credentials are those of the process that connected or listened; the kernel has recorded them at that
// time.
absl::StatusOr<uid_t> ControlSocket::peer_user() const {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return errno_status("cannot read the credentials of the peer process", errno);
  }
  return peer.uid;
}

}  // namespace gradwire::transport
