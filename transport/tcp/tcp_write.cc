// The part of TcpConnection that any thread runs: queueing, writing, capturing.

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

constexpr int kMaxPieces = 64;
// System calls that one call to send() makes before the loop carries on: a fast reader could keep it there
// for long.
constexpr int kWritesPerTurn = 16;
// While no more than kStepwiseBytes are queued a system call writes at most kStepBytes: so the other end surely reads
// the beginning while the rest is being copied. With more, the socket's own buffer makes the steps.
constexpr std::size_t kStepBytes = std::size_t{256} << 10;
constexpr std::size_t kStepwiseBytes = std::size_t{4} << 20;
// A batch that has more to send writes at once: the other end may begin with it.
constexpr std::size_t kMaxBatchBytes = std::size_t{64} << 10;

// The first pieces, `bytes` at most, of which at least one.
int limit(iovec* pieces, int count, std::size_t bytes) {
  for (int i = 0; i < count; ++i) {
    if (pieces[i].iov_len >= bytes) {
      pieces[i].iov_len = bytes;
      return i + 1;
    }
    bytes -= pieces[i].iov_len;
  }
  return count;
}

}  // namespace

absl::StatusOr<uint64_t> TcpConnection::send(Message message) {
  absl::Status within_limits = check_frame_limits(message, context_->options.limits);
  if (!within_limits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message for ", peer_address_, " is too large: ", within_limits.message()));
  }
  uint64_t ticket;
  Queued queued;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) {
      return absl::UnavailableError(
          absl::StrCat("connection with ", peer_address_, " is closed: ", close_reason_->message()));
    }
    ticket = next_ticket_++;
    queued = push_locked(ticket, message);
  }
  if (queued.want_stripes) {
    context_->loop->post([self = shared_from_this()] { self->want_stripes_in_loop(); });
  }
  if (queued.post_flush) context_->loop->post([self = shared_from_this()] { self->flush_batch(); });
  if (!queued.in_batch) write_queued();
  return ticket;
}

TcpConnection::Queued TcpConnection::push_locked(uint64_t ticket, Message& message) {
  Queued queued;
  const TcpOptions& options = context_->options;
  if (options.stripes > 0 && message.byte_size() >= striping_.from_bytes) {
    sent_striped_ = true;
    for (int stripe = 1; stripe <= striping_.stripes; ++stripe) {
      std::vector<Buffer> shares;
      for (const Buffer& buffer : message.buffers) {
        if (!striping_.covers(buffer.size())) continue;
        const StripeShare share = stripe_share(buffer.size(), striping_.stripes, stripe);
        if (share.size == 0) continue;
        shares.emplace_back(static_cast<char*>(buffer.data()) + share.offset, share.size, buffer.owner(),
                            buffer.sharing());
      }
      if (!shares.empty())
        lanes_[static_cast<std::size_t>(stripe)].queue.push_shares(ticket, std::move(shares));
    }
    if (striping_.stripes == 0 && !stripes_wanted_) stripes_wanted_ = queued.want_stripes = true;
  }
  Lane& lane = lanes_.front();
  lane.queue.push(ticket, message, striping_);
  SendBatch* const batch = SendBatch::current();
  if (batch == nullptr || lane.fd < 0 || lane.queue.bytes() > kMaxBatchBytes) return queued;
  queued.in_batch = true;
  if (in_batch_) return queued;
  in_batch_ = true;
  batch->add(shared_from_this());
  queued.post_flush = batch->scope() == SendBatch::Scope::kAnything;
  return queued;
}

void TcpConnection::flush_batch() {
  {
    MutexLock lock(mutex_);
    in_batch_ = false;
  }
  write_queued();
}

std::size_t TcpConnection::queued_bytes() {
  MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.queue.bytes();
  return bytes;
}

void TcpConnection::capture(uint64_t ticket) {
  // A stripe that is added meanwhile has nothing of this message.
  for (std::size_t lane = 0; lane < lane_count_.load(std::memory_order_acquire); ++lane) {
    if (!capture_lane(lane, ticket)) return;
  }
}

bool TcpConnection::capture_lane(std::size_t lane, uint64_t ticket) {
  std::vector<SendQueue::BorrowedPart> parts;
  {
    MutexLock lock(mutex_);
    if (lane >= lanes_.size()) return true;
    parts = lanes_[lane].queue.borrowed_parts(ticket);
  }
  if (parts.empty()) return true;
  // Copied outside the lock; what leaves meanwhile is copied for nothing.
  std::vector<SendQueue::BorrowedPart> copies;
  copies.reserve(parts.size());
  absl::Status failure;
  for (const SendQueue::BorrowedPart& part : parts) {
    std::size_t size = part.buffer.size() - part.offset;
    absl::StatusOr<Buffer> copy = context_->pool->allocate(size);
    if (!copy.ok()) {
      failure = copy.status();
      break;
    }
    std::memcpy(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  // The rest cannot be sent as it was: to send anything else would be wrong.
  if (!failure.ok()) {
    close(with_context(failure, absl::StrCat("a message for ", peer_address_)), absl::ZeroDuration());
  }
  MutexLock lock(mutex_);
  if (lane >= lanes_.size()) return true;
  if (!failure.ok()) {
    // Nothing is written any more, and the other lanes' pieces are not either.
    for (Lane& each : lanes_) each.fd = -1;
    for (std::size_t i = 0; i < lanes_.size(); ++i) await_write_locked(i);
    return false;
  }
  lanes_[lane].queue.replace_borrowed(ticket, copies);
  // A write that has taken its pieces may still read the caller's memory.
  await_write_locked(lane);
  return true;
}

void TcpConnection::await_write_locked(std::size_t lane) {
  const uint64_t count = lanes_[lane].write_count;
  while (lane < lanes_.size() && lanes_[lane].writing && lanes_[lane].write_count == count) {
    write_finished_.wait(mutex_);
  }
}

void TcpConnection::write_queued() {
  for (int turn = 0; turn < kWritesPerTurn; ++turn) {
    bool more = false;
    const std::size_t lanes = lane_count_.load(std::memory_order_acquire);
    for (std::size_t lane = 0; lane < lanes; ++lane) more = write_once(lane) || more;
    if (!more) return;
  }
  hand_over_writing();
}

bool TcpConnection::write_once(std::size_t index) {
  iovec pieces[kMaxPieces];
  int count;
  int fd;
  {
    MutexLock lock(mutex_);
    if (index >= lanes_.size()) return false;
    Lane& lane = lanes_[index];
    if (lane.writing || lane.full || lane.fd < 0 || lane.queue.empty()) return false;
    fd = lane.fd;
    count = lane.queue.gather(pieces, kMaxPieces);
    if (lane.queue.bytes() <= kStepwiseBytes) count = limit(pieces, count, kStepBytes);
    lane.writing = true;
    lane.became_writable = false;
  }
  ssize_t result;
  if (count == 1) {
    result = ::send(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    msghdr header = {};
    header.msg_iov = pieces;
    header.msg_iovlen = static_cast<std::size_t>(count);
    result = ::sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  const int error = result < 0 ? errno : 0;

  std::vector<Message> left;
  bool more = false;
  bool drained = false;
  {
    MutexLock lock(mutex_);
    // Lanes are not removed while somebody writes.
    Lane& lane = lanes_[index];
    lane.writing = false;
    ++lane.write_count;
    write_finished_.notify_all();
    if (result >= 0) {
      lane.queue.advance(static_cast<std::size_t>(result), left);
      more = !lane.queue.empty();
      drained = !more && state_ == State::kClosing && drained_locked();
    } else if (error == EAGAIN || error == EWOULDBLOCK) {
      lane.full = !lane.became_writable;
      more = lane.became_writable;
    } else if (error == EINTR) {
      more = true;
    } else {
      // Nothing can be written any more.
      for (Lane& each : lanes_) each.fd = -1;
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

bool TcpConnection::drained_locked() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.queue.empty(); });
}

void TcpConnection::socket_writable_in_loop(std::size_t index) {
  {
    MutexLock lock(mutex_);
    if (index >= lanes_.size()) return;
    Lane& lane = lanes_[index];
    lane.full = false;
    lane.became_writable = true;
    // A thread that is writing carries on.
    if (lane.writing || lane.queue.empty()) return;
  }
  write_queued();
}

void TcpConnection::hand_over_writing() {
  context_->loop->post([self = shared_from_this()] { self->write_queued(); });
}

}  // namespace gradwire::transport
