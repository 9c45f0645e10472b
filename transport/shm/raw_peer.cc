#include "gradwire/transport/shm/raw_peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "gradwire/transport/shm/memory/arena.h"
#include "gradwire/transport/shm/shm_address.h"

namespace gradwire::transport {

RawPeer::RawPeer(const std::string& address) {
  const absl::StatusOr<ShmAddress> parsed = parse_shm_address(address);
  if (!parsed.ok()) return;
  const UnixAddress to = abstract_address(*parsed);
  socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) != 0)
    socket_.reset();
}

bool RawPeer::send(const void* bytes, std::size_t size, const std::vector<int>& descriptors) {
  iovec part = {const_cast<void*>(bytes), size};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size() * sizeof(int));
  }
  return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

void RawPeer::send_hello(std::size_t ring_bytes, std::size_t max_arena_bytes) {
  absl::StatusOr<SharedMemory> memory =
      SharedMemory::create(ring_memory_bytes(ring_bytes), false, own_descriptor_);
  if (!memory.ok()) return;
  own_ring_ = *std::move(memory);
  HelloPacket hello;
  hello.ring_bytes = ring_bytes;
  hello.max_arena_bytes = max_arena_bytes;
  send(hello, {own_descriptor_.get()});
}

SharedMemory RawPeer::second_mapping_of_own_ring() const {
  absl::StatusOr<SharedMemory> memory = SharedMemory::adopt(own_descriptor_, own_ring_.size(), false);
  return memory.ok() ? *std::move(memory) : SharedMemory();
}

void RawPeer::take(ControlPacket& packet) {
  if (const auto hello = packet.as<HelloPacket>(1)) {
    auto memory = SharedMemory::adopt(packet.descriptors[0], ring_memory_bytes(hello->ring_bytes), false);
    if (memory.ok()) other_ring_ = *std::move(memory);
  } else if (const auto segment = packet.as<SegmentPacket>(1)) {
    auto memory = SharedMemory::adopt(packet.descriptors[0], segment->bytes, false);
    if (memory.ok()) other_segments_.push_back(*std::move(memory));
  }
}

bool RawPeer::receive() {
  if (ended()) return false;
  ControlPacket packet;
  iovec part = {packet.bytes, sizeof(packet.bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got <= 0) {
    ended_ = got == 0 || errno == ECONNRESET;
    return false;
  }
  packet.size = static_cast<std::size_t>(got);
  if (cmsghdr* const rights = CMSG_FIRSTHDR(&header)) {
    int descriptor;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof(int));
    packet.descriptors.emplace_back(descriptor);
  }
  take(packet);
  return true;
}

bool RawPeer::wait_and_receive() {
  pollfd ready = {socket_.get(), POLLIN, 0};
  return ::poll(&ready, 1, 60'000) == 1 && receive();
}

bool RawPeer::is_closed_by_peer() {
  while (wait_and_receive()) {
  }
  return ended_;
}

void RawPeer::put_record(uint8_t kind, uint32_t buffers, uint32_t length, const std::string& payload) {
  const std::size_t ring_bytes = own_line_count() * kLineBytes;
  std::size_t at = line_ % own_line_count() * kLineBytes + sizeof(uint64_t);
  for (std::size_t done = 0; done < payload.size();) {
    const std::size_t start = at % ring_bytes;
    const std::size_t part = std::min(payload.size() - done, ring_bytes - start);
    std::memcpy(own_ring_.data() + kLinesOffset + start, payload.data() + done, part);
    done += part;
    at += part;
  }
  shared_word<uint64_t>(own_line(line_)).store(RecordWord{kind, buffers, length}.encode());
  line_ += lines_of(payload.size());
}

RawListener::RawListener() {
  const absl::StatusOr<ShmAddress> address = new_shm_address();
  if (!address.ok()) return;
  absl::StatusOr<Descriptor> socket = listen_at(*address);
  if (!socket.ok()) return;
  socket_ = *std::move(socket);
  address_ = address->to_string();
}

std::unique_ptr<RawPeer> RawListener::accept() {
  pollfd ready = {socket_.get(), POLLIN, 0};
  if (::poll(&ready, 1, 60'000) != 1) return nullptr;
  Descriptor accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return accepted.valid() ? std::make_unique<RawPeer>(std::move(accepted)) : nullptr;
}

std::string list_entry(uint64_t size, uint64_t location, uint64_t block) {
  const BufferEntry entry{size | location << BufferEntry::kLocationShift, block};
  return std::string(reinterpret_cast<const char*>(&entry), sizeof(entry));
}

std::string start_of(uint64_t header_bytes, uint64_t buffers) {
  const uint64_t start[2] = {header_bytes, buffers};
  return std::string(reinterpret_cast<const char*>(start), sizeof(start));
}

}  // namespace gradwire::transport
