#include "gradwire/security/tls/byte_buffers.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gradwire::security {
namespace {

constexpr size_t kFirstCapacity = 4096;

}  // namespace

ssize_t ReceivedBytes::receive(int socket, size_t most) {
  // 1. Make room: enlarge the buffer if the socket filled it last time, or move the remaining bytes, which
  // are
  //    less than a record, to its beginning.
  if (capacity_ == 0 || (grow_ && capacity_ < kMaxBytes)) {
    const size_t capacity = capacity_ == 0 ? kFirstCapacity : std::min(capacity_ * 4, kMaxBytes);
    std::unique_ptr<char[]> larger(new char[capacity]);
    if (!empty()) std::memcpy(larger.get(), bytes().data(), bytes().size());
    bytes_ = std::move(larger);
    capacity_ = capacity;
    end_ -= std::exchange(begin_, 0);
  } else if (begin_ > 0) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }

  // 2. Receive.
  const size_t room = std::min(most, capacity_ - end_);
  ssize_t count = 0;
  do {
    count = ::recv(socket, bytes_.get() + end_, room, MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  filled_ = count > 0 && static_cast<size_t>(count) == room;
  grow_ = filled_ && room == capacity_ - end_;
  if (count > 0) {
    end_ += static_cast<size_t>(count);
    received_ += static_cast<uint64_t>(count);
  }
  return count;
}

size_t ReceivedBytes::take(char* to, size_t size) {
  size = std::min(size, end_ - begin_);
  std::memcpy(to, bytes_.get() + begin_, size);
  begin_ += size;
  if (begin_ == end_) begin_ = end_ = 0;
  return size;
}

bool BytesToSend::send(int socket) {
  while (!empty()) {
    const ssize_t count = ::send(socket, bytes_.data() + begin_, size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    begin_ += static_cast<size_t>(count);
  }
  clear();
  return true;
}

void BytesToSend::clear() {
  bytes_.clear();
  begin_ = 0;
}

void BytesToSend::swap(BytesToSend& other) noexcept {
  bytes_.swap(other.bytes_);
  std::swap(begin_, other.begin_);
}

}  // namespace gradwire::security
