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

namespace {

int bio_read(BIO* bio, char* to, size_t size, size_t* count) {
  BIO_clear_retry_flags(bio);
  BioEnds& ends = *static_cast<BioEnds*>(BIO_get_data(bio));
  if (ends.too_many_records()) return 0;
  if (ends.in == nullptr || ends.in->empty()) {
    ends.wanted = size;
    BIO_set_retry_read(bio);
    return 0;
  }
  *count = ends.in->take(to, size);
  return 1;
}

int bio_write(BIO* bio, const char* bytes, size_t size, size_t* count) {
  BIO_clear_retry_flags(bio);
  static_cast<BioEnds*>(BIO_get_data(bio))->out->append(bytes, size);
  *count = size;
  return 1;
}

long bio_control(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int bio_create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

const BIO_METHOD* bio_method() {
  // Never freed: connections may still end during the destruction of static objects.
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gradwire");
    BIO_meth_set_read_ex(made, bio_read);
    BIO_meth_set_write_ex(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    BIO_meth_set_create(made, bio_create);
    return made;
  }();
  return method;
}

void count_record(int writing, int /*version*/, int content, const void* /*bytes*/, size_t /*size*/,
                  SSL* /*ssl*/, void* ends) {
  if (writing == 0 && (content == SSL3_RT_HEADER || content == SSL3_RT_HANDSHAKE)) {
    ++static_cast<BioEnds*>(ends)->records;
  }
}

}  // namespace

void connect_bio(SSL* ssl, BioEnds* ends) {
  BIO* bio = SSL_get_rbio(ssl);
  if (bio == nullptr) {
    bio = BIO_new(bio_method());
    SSL_set_bio(ssl, bio, bio);
    SSL_set_msg_callback(ssl, count_record);
  }
  BIO_set_data(bio, ends);
  SSL_set_msg_callback_arg(ssl, ends);
}

}  // namespace gradwire::security
