// The part of TcpConnection that any thread runs: queueing, writing, capturing.

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

constexpr int kMaxPieces = 64;
// System calls that one call to send() makes before the loop carries on: a fast reader could keep it there
// for long.
constexpr int kWritesPerTurn = 16;

}  // namespace

absl::StatusOr<uint64_t> TcpConnection::send(Message message) {
  absl::Status within_limits = check_frame_limits(message, context_->options.limits);
  if (!within_limits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message for ", peer_address_, " is too large: ", within_limits.message()));
  }
  OutgoingMessage outgoing(std::move(message));
  uint64_t ticket;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) {
      return absl::UnavailableError(
          absl::StrCat("connection with ", peer_address_, " is closed: ", close_reason_->message()));
    }
    ticket = queue_.push(std::move(outgoing));
  }
  write_queued();
  return ticket;
}

void TcpConnection::capture(uint64_t ticket) {
  std::vector<SendQueue::BorrowedPart> parts;
  {
    MutexLock lock(mutex_);
    parts = queue_.borrowed_parts(ticket);
  }
  if (parts.empty()) return;
  // Copied outside the lock; what leaves meanwhile is copied for nothing.
  std::vector<SendQueue::BorrowedPart> copies;
  copies.reserve(parts.size());
  for (const SendQueue::BorrowedPart& part : parts) {
    std::size_t size = part.buffer.size() - part.offset;
    absl::StatusOr<Buffer> copy = context_->pool.allocate(size);
    if (!copy.ok()) {
      // The rest cannot be sent as it was: to send anything else would be wrong.
      close(with_context(copy.status(), absl::StrCat("a message for ", peer_address_)), absl::ZeroDuration());
      break;
    }
    std::memcpy(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  MutexLock lock(mutex_);
  if (copies.size() == parts.size()) {
    queue_.replace_borrowed(ticket, copies);
  }
  // A write that has taken its pieces may still read the caller's memory.
  uint64_t count = write_count_;
  while (writing_ && write_count_ == count) write_finished_.wait(mutex_);
}

void TcpConnection::write_queued() {
  for (int turn = 0; turn < kWritesPerTurn; ++turn) {
    if (!write_once()) return;
  }
  hand_over_writing();
}

bool TcpConnection::write_once() {
  iovec pieces[kMaxPieces];
  msghdr header = {};
  header.msg_iov = pieces;
  int fd;
  {
    MutexLock lock(mutex_);
    if (writing_ || socket_full_ || write_fd_ < 0 || queue_.empty()) return false;
    fd = write_fd_;
    header.msg_iovlen = queue_.gather(pieces, kMaxPieces);
    writing_ = true;
    became_writable_ = false;
  }
  ssize_t result = ::sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  int error = result < 0 ? errno : 0;

  std::vector<OutgoingMessage> left;
  bool more = false;
  bool drained = false;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    ++write_count_;
    write_finished_.notify_all();
    if (result >= 0) {
      queue_.advance(static_cast<std::size_t>(result), left);
      more = !queue_.empty();
      drained = !more && state_ == State::kClosing;
    } else if (error == EAGAIN || error == EWOULDBLOCK) {
      socket_full_ = !became_writable_;
      more = became_writable_;
    } else if (error == EINTR) {
      more = true;
    } else {
      // Nothing can be written any more.
      write_fd_ = -1;
    }
  }
  if (drained) {
    context_->loop->post([self = shared_from_this()] { self->queue_drained_in_loop(); });
  }
  if (error != 0 && error != EAGAIN && error != EWOULDBLOCK && error != EINTR) {
    // What the other end sent before it went is read first; the end of that gives the reason.
    context_->loop->post([self = shared_from_this(), cause = std::string(std::strerror(error))] {
      self->read_in_loop(true);
      self->finish_in_loop(self->unavailable(cause));
    });
  }
  return more;
}

void TcpConnection::socket_writable_in_loop() {
  {
    MutexLock lock(mutex_);
    socket_full_ = false;
    became_writable_ = true;
  }
  write_queued();
}

void TcpConnection::hand_over_writing() {
  context_->loop->post([self = shared_from_this()] { self->write_queued(); });
}

}  // namespace gradwire::transport
