#include "gradwire/transport/shm/memory/control_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

// More than any valid packet has, so that extra descriptors are detected and closed.
constexpr std::size_t kDescriptorsTaken = 4;

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
  if (!socket_.valid()) return false;
  ssize_t sent;
  do {
    // It never waits, since callers hold locks. The lock keeps the descriptor open meanwhile.
    sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

ControlSocket::Receipt ControlSocket::receive(ControlPacket& packet) {
  packet.size = 0;
  packet.descriptors.clear();
  iovec part = {packet.bytes, sizeof(packet.bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(kDescriptorsTaken * sizeof(int))];
  const int socket = descriptor();
  if (socket < 0) return Receipt::kEnd;
  for (int reset = 0;;) {
    msghdr header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Receipt::kNothing;
      // ECONNRESET is reported once if the peer closed without reading all data. Packets that it sent can
      // still be read.
      if (errno == ECONNRESET && reset++ == 0) continue;
      return Receipt::kEnd;
    }
    // Take all descriptors first, also those of an invalid packet: they are open in this process now, and
    // `packet` closes them.
    for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int received;
        std::memcpy(&received, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
        packet.descriptors.emplace_back(received);
      }
    }
    // Packets have at least one byte, so this is the end of the stream.
    if (got == 0) return Receipt::kEnd;
    packet.size = static_cast<std::size_t>(got);
    if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return Receipt::kInvalid;
    return Receipt::kPacket;
  }
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
