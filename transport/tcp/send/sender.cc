// How data leaves, without a thread of its own and without a lost message:
// 1. send() appends to the queue under the lock, then calls write_queued(), or leaves that to the batch of
//    its thread.
// 2. write_once() reserves the lane (`writing`), writes outside the lock, and checks the queue again under
//    the lock. So a thread that finds the lane reserved may return: the writing thread sees what it has
//    appended.
// 3. A full socket ends the attempt. Then epoll reports the room, and writable_in_loop() goes on.

#include "gradwire/transport/tcp/send/sender.h"

#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

constexpr int kMaxPieces = 64;
// Pauses before a write is repeated for which the kernel had no memory. Epoll does not report when it has
// some.
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
// Maximum number of system calls of one send(); then the loop continues. A fast reader could otherwise keep
// the thread busy for long.
constexpr int kWritesPerTurn = 16;
// While at most kStepwiseBytes are queued, a system call writes at most kStepBytes, so that the peer can read
// the beginning while the rest is being copied. With more data, the socket's buffer limits the steps.
constexpr std::size_t kStepBytes = std::size_t{256} << 10;
constexpr std::size_t kStepwiseBytes = std::size_t{4} << 20;
// A batch with more data writes at once, so that the peer can begin to read.
constexpr std::size_t kMaxBatchBytes = std::size_t{64} << 10;

// Limits the pieces to `bytes` bytes, at least one piece.
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

ssize_t write_pieces(int fd, iovec* pieces, int count) {
  if (count == 1) return ::send(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
  msghdr header = {};
  header.msg_iov = pieces;
  header.msg_iovlen = static_cast<std::size_t>(count);
  return ::sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Whether this errno says only that the peer has closed or reset the connection.
bool is_end_by_peer(int error) { return error == EPIPE || error == ECONNRESET; }

// Why a system call on a connected socket has failed with this errno.
std::string socket_error(int error) {
  if (error != ETIMEDOUT) return std::strerror(error);
  return absl::StrCat("the peer did not answer or did not read for too long (", std::strerror(error), ")");
}

}  // namespace

TcpSender::TcpSender(LoopConnection& connection, const Limits& limits, uint64_t stripe_from_bytes)
    : connection_(connection), limits_(limits), lanes_(1) {
  striping_.from_bytes = std::max(stripe_from_bytes, kMinStripedBytes);
}

absl::StatusOr<uint64_t> TcpSender::send(Message& message, bool& want_stripes) {
  GRADWIRE_RETURN_IF_ERROR(connection_.check_sendable(message, limits_));
  SendBatch* const batch = SendBatch::current();
  const std::size_t message_bytes = message.byte_size();
  bool in_batch = false;
  bool first_in_batch = false;
  uint64_t ticket;
  {
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return connection_.closed_error(*refusal_);
    ticket = next_ticket_++;
    push_locked(ticket, message);
    if (message_bytes >= striping_.from_bytes) {
      sent_striped_ = true;
      want_stripes = striping_.stripes == 0 && !std::exchange(stripes_wanted_, true);
    }
    Lane& lane = lanes_.front();
    in_batch = batch != nullptr && lane.fd >= 0 && lane.queue.bytes() <= kMaxBatchBytes;
    first_in_batch = in_batch && !std::exchange(in_batch_, true);
  }
  if (!in_batch) write_queued();
  // The message is queued, so this function does not fail any more. Without memory for the batch, this thread
  // writes the message.
  if (first_in_batch && !run_contained("combining messages", [&] { leave_to(*batch); })) flush_batch();
  return ticket;
}

// The batch of this thread writes the message, or the loop if it runs first.
void TcpSender::leave_to(SendBatch& batch) {
  const auto self = connection_.keep<SendBatch::Member>(this);
  batch.add(self);
  if (batch.scope() == SendBatch::Scope::kAnything) {
    // The handlers of the batch may take long or wait. Then another thread drives the loop and writes the
    // message. The task keeps the connection alive.
    connection_.post([self] { self->flush_batch(); });
  }
}

void TcpSender::push_locked(uint64_t ticket, Message& message) {
  try {
    // Before the message is moved into the queue of the connection's own socket.
    if (message.byte_size() >= striping_.from_bytes) push_shares_locked(ticket, message);
    lanes_.front().queue.push(ticket, message, striping_);
  } catch (...) {
    // The peer would take the shares for those of the next message.
    for (std::size_t stripe = 1; stripe < lanes_.size(); ++stripe)
      lanes_[stripe].queue.take_back_shares(ticket);
    throw;
  }
}

void TcpSender::push_shares_locked(uint64_t ticket, const Message& message) {
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
}

void TcpSender::flush_batch() {
  {
    MutexLock lock(mutex_);
    // Before the write: a message that is appended from now on joins the batch again.
    in_batch_ = false;
  }
  write_queued();
}

std::size_t TcpSender::queued_bytes() {
  MutexLock lock(mutex_);
  std::size_t bytes = 0;
  for (const Lane& lane : lanes_) bytes += lane.queue.bytes();
  return bytes;
}

bool TcpSender::borrows(uint64_t ticket) {
  MutexLock lock(mutex_);
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&](const Lane& lane) { return !lane.queue.borrowed_parts(ticket).empty(); });
}

void TcpSender::capture(uint64_t ticket) {
  assert(!on_duty());
  // A stripe that is added meanwhile has no data of this message.
  for (std::size_t lane = 0; lane < lane_count_.load(std::memory_order_acquire); ++lane) {
    if (!capture_lane(lane, ticket)) return;
  }
}

// 1. List the borrowed parts under the lock. The list shares the ownership of their buffers.
// 2. Copy them without the lock, because that may take long.
// 3. Replace those that are still unsent, then wait for a write that may be reading the original.
bool TcpSender::capture_lane(std::size_t lane, uint64_t ticket) {
  std::vector<SendQueue::BorrowedPart> parts;
  {
    MutexLock lock(mutex_);
    if (lane >= lanes_.size()) return true;
    parts = lanes_[lane].queue.borrowed_parts(ticket);
  }
  if (parts.empty()) return true;
  // Copy outside the lock. Copies of parts that are sent meanwhile are not used.
  std::vector<SendQueue::BorrowedPart> copies;
  copies.reserve(parts.size());
  absl::Status failure;
  for (const SendQueue::BorrowedPart& part : parts) {
    std::size_t size = part.buffer.size() - part.offset;
    absl::StatusOr<Buffer> copy = connection_.context().pool->allocate(size);
    if (!copy.ok()) {
      failure = copy.status();
      break;
    }
    std::memcpy(copy->data(), static_cast<const char*>(part.buffer.data()) + part.offset, size);
    copies.push_back({part.index, part.offset, *std::move(copy)});
  }
  // The bytes of this moment cannot be preserved, and later bytes would be wrong: close the connection.
  if (!failure.ok()) {
    connection_.close(
        with_context(failure, absl::StrCat("cannot capture a message for ", connection_.peer_address())),
        absl::ZeroDuration());
  }
  MutexLock lock(mutex_);
  if (lane >= lanes_.size()) return true;
  if (!failure.ok()) {
    // Stop all writing, so that the other lanes do not send later bytes either.
    forget_sockets_locked();
    return false;
  }
  lanes_[lane].queue.replace_borrowed(ticket, copies);
  // A write in progress may still read the caller's memory: wait for it.
  await_write_locked(lane);
  return true;
}

void TcpSender::push_bytes(absl::string_view bytes) {
  MutexLock lock(mutex_);
  lanes_.front().queue.push_bytes(bytes);
}

void TcpSender::send_control(StripeControl control) {
  const char byte = static_cast<char>(control);
  {
    MutexLock lock(mutex_);
    if (control == StripeControl::kDrop) striping_.stripes = 0;
    lanes_.front().queue.push_bytes(encode_control_frame(absl::string_view(&byte, 1)));
  }
  write_queued();
}

void TcpSender::start(int socket, security::SecureStream* stream) {
  MutexLock lock(mutex_);
  socket_ = lanes_.front().fd = socket;
  lanes_.front().stream = stream;
}

void TcpSender::use_stripes(absl::Span<const int> sockets) {
  MutexLock lock(mutex_);
  // The connection is being closed: no message will use the stripes.
  if (refusal_.has_value()) return;
  lanes_.resize(1 + sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) lanes_[1 + i].fd = sockets[i];
  lane_count_.store(lanes_.size(), std::memory_order_release);
  striping_.stripes = static_cast<int>(sockets.size());
}

void TcpSender::remove_stripes() {
  absl::InlinedVector<SendQueue::Unsent, 4> unsent;
  MutexLock lock(mutex_);
  striping_.stripes = 0;
  for (std::size_t lane = 1; lane < lanes_.size(); ++lane) {
    // In this order: no new write can begin, and the one in progress has returned, before the caller closes
    // the descriptor. await_write_locked() releases the lock while it waits.
    lanes_[lane].fd = -1;
    await_write_locked(lane);
    unsent.push_back(lanes_[lane].queue.clear());
  }
  lanes_.resize(1);
  lane_count_.store(1, std::memory_order_release);
}

void TcpSender::set_stripes_wanted(bool yes) {
  MutexLock lock(mutex_);
  stripes_wanted_ = yes;
}

bool TcpSender::take_sent_striped() {
  MutexLock lock(mutex_);
  return std::exchange(sent_striped_, false);
}

void TcpSender::refuse(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!refusal_.has_value()) refusal_ = reason;
}

void TcpSender::end(const absl::Status& reason) {
  refuse(reason);
  absl::InlinedVector<SendQueue::Unsent, 4> unsent;
  MutexLock lock(mutex_);
  // Wait for writes in progress: the memory that they read and their descriptors must stay valid until they
  // have returned.
  forget_sockets_locked();
  socket_ = -1;
  for (Lane& lane : lanes_) unsent.push_back(lane.queue.clear());
}

void TcpSender::forget_sockets_locked() {
  for (Lane& lane : lanes_) lane.fd = -1;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) await_write_locked(lane);
}

// Compares the number of writes, not only `writing`: when this thread gets the lock back, the next write
// may have begun already. A thread on duty may wait here: a write is one system call that does not block.
void TcpSender::await_write_locked(std::size_t lane) {
  const uint64_t count = lanes_[lane].write_count;
  while (lane < lanes_.size() && lanes_[lane].writing && lanes_[lane].write_count == count) {
    write_finished_.wait(mutex_);
  }
}

void TcpSender::write_queued() {
  do {
    for (int turn = 0; turn < kWritesPerTurn; ++turn) {
      if (!write_each_lane()) return;
    }
    // Too much at once: let the loop go on, so that this thread may return to its caller.
  } while (!leave_to_task([&](auto task) { connection_.post(std::move(task)); }));
}

// One task is enough for all threads: with one for each send() the loop would do little else.
template <class Begin>
bool TcpSender::leave_to_task(Begin begin) {
  if (write_posted_.exchange(true)) return true;
  const bool begun = run_contained("posting a write", [&] {
    begin([this] {
      // Before the write: what is appended from now on has a task again.
      write_posted_.store(false);
      write_in_loop();
    });
  });
  if (!begun) write_posted_.store(false);
  return begun;
}

bool TcpSender::write_each_lane() {
  bool more = false;
  const std::size_t lanes = lane_count_.load(std::memory_order_acquire);
  for (std::size_t lane = 0; lane < lanes; ++lane) more = write_once(lane) || more;
  return more;
}

// Writes without the lock held, so that other threads can send meanwhile. `writing` reserves the lane for
// this thread, and the gathered pieces stay valid until advance().
bool TcpSender::write_once(std::size_t index) {
  iovec pieces[kMaxPieces];
  int count;
  int fd;
  security::SecureStream* stream;
  {
    MutexLock lock(mutex_);
    if (index >= lanes_.size()) return false;
    Lane& lane = lanes_[index];
    if (lane.writing || lane.full || lane.fd < 0 || lane.queue.empty()) return false;
    fd = lane.fd;
    stream = lane.stream;
    count = lane.queue.gather(pieces, kMaxPieces);
    if (lane.queue.bytes() <= kStepwiseBytes) count = limit(pieces, count, kStepBytes);
    lane.writing = true;
    // epoll is edge-triggered: it reports room once. The report may come after the system call has found
    // the socket full but before this thread has noted that. writable_in_loop() then sets became_writable,
    // and this thread tries again instead of waiting for a report that does not come.
    lane.became_writable = false;
  }
  ssize_t result = -1;
  int error;
  absl::Status failure;
  try {
    result = stream == nullptr ? write_pieces(fd, pieces, count)
                               : stream->write(absl::MakeConstSpan(pieces, static_cast<std::size_t>(count)));
    error = result < 0 ? errno : 0;
    // Asked now: the stream may be gone when this thread has given the lane back.
    if (stream != nullptr && error == EPROTO) failure = stream->failure();
  } catch (...) {
    // Nobody knows what the stream has written.
    error = EPROTO;
    failure = caught("writing to the socket");
  }
  const bool full = error == EAGAIN || error == EWOULDBLOCK;
  // ENOBUFS or ENOMEM: that says nothing about the peer.
  const bool no_memory = is_shortage(error);
  absl::Duration pause;

  // Destroyed outside the lock, because buffers belong to users.
  SendQueue::Sent sent;
  bool more = false;
  bool drained = false;
  bool failed = false;
  {
    MutexLock lock(mutex_);
    // Lanes are not removed while a thread writes.
    Lane& lane = lanes_[index];
    lane.writing = false;
    ++lane.write_count;
    write_finished_.notify_all();
    if (result >= 0) {
      lane.pause = Lane::kFirstPause;
      try {
        lane.queue.advance(static_cast<std::size_t>(result), sent);
      } catch (...) {
        // The position in the queue is lost.
        failure = caught("releasing what was sent");
      }
      more = !lane.queue.empty();
      drained = !more && refusal_.has_value() && drained_locked();
    } else if (full) {
      lane.full = !lane.became_writable;
      more = lane.became_writable;
    } else if (error == EINTR) {
      more = true;
    } else if (no_memory) {
      lane.full = true;
      pause = std::exchange(lane.pause, std::min(2 * lane.pause, kLongestPause));
    } else {
      failed = true;
      if (!is_end_by_peer(error) && failure.ok()) failure_ = error;
    }
    if (!failure.ok()) failed = true;
    if (failed) {
      // The connection has failed: stop all writing.
      // Other lanes would send the shares of messages whose beginning is lost.
      for (Lane& each : lanes_) each.fd = -1;
      more = drained = false;
    }
  }
  if (drained) {
    report([&] { connection_.post([this] { connection_.drained_in_loop(); }); });
  } else if (!failure.ok()) {
    report([&] { connection_.post([this, failure] { connection_.fail_in_loop(failure); }); });
  } else if (failed) {
    report(
        [&] { connection_.post([this, cause = socket_error(error)] { connection_.lost_in_loop(cause); }); });
  } else if (no_memory && !run_contained("posting a write", [&] { write_later(index, pause); })) {
    more = note_room(index);
  }
  return more;
}

void TcpSender::report(absl::FunctionRef<void()> post) {
  if (run_contained("reporting what a write has found", post)) return;
  // Then the loop reads the end of the socket.
  MutexLock lock(mutex_);
  if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
}

void TcpSender::write_later(std::size_t index, absl::Duration pause) {
  connection_.post([this, index, pause] {
    const absl::Time when = Clock::system().now() + pause;
    const bool scheduled = run_contained("scheduling a write", [&] {
      connection_.schedule_in_loop(when, [this, index] { writable_in_loop(index); });
    });
    if (!scheduled) writable_in_loop(index);
  });
}

// The kernel reports an error once, to a write or to a read; after that a read finds the end of the stream.
// So the cause is known when the writes in progress have returned.
std::string TcpSender::cause_of_end(absl::string_view closed, int read_error) {
  if (read_error != 0 && !is_end_by_peer(read_error)) return socket_error(read_error);
  MutexLock lock(mutex_);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) await_write_locked(lane);
  return failure_ != 0 ? socket_error(failure_) : std::string(closed);
}

bool TcpSender::drained() {
  MutexLock lock(mutex_);
  return drained_locked();
}

bool TcpSender::drained_locked() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.queue.empty(); });
}

void TcpSender::writable_in_loop(std::size_t index) {
  if (note_room(index)) write_in_loop();
}

bool TcpSender::note_room(std::size_t index) {
  MutexLock lock(mutex_);
  if (index >= lanes_.size()) return false;
  Lane& lane = lanes_[index];
  lane.full = false;
  lane.became_writable = true;
  // A thread that is writing will continue.
  return !lane.writing && !lane.queue.empty();
}

// A peer that reads fast could otherwise keep the loop busy for long.
void TcpSender::write_in_loop() {
  Turns& turns = connection_.loop().turns_in_loop();
  while (write_each_lane()) {
    if (turns.spent() && leave_to_task([&](auto task) { connection_.defer_in_loop(std::move(task)); }))
      return;
  }
}

}  // namespace gradwire::transport
