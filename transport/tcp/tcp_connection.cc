#include "transport/tcp/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error.h"

namespace gradwire::transport {
namespace {

// Reads of one connection before the others get their turn.
constexpr int kReadsPerTurn = 16;
constexpr int kMaxPlaces = 16;

}  // namespace

TcpConnection::TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address)
    : context_(std::move(context)),
      peer_address_(std::move(peer_address)),
      parser_(context_->options.limits, context_->pool) {}

TcpConnection::~TcpConnection() = default;

void TcpConnection::close(absl::Status reason, absl::Duration flush) {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
    state_ = State::kClosing;
    close_reason_ = std::move(reason);
  }
  close_called_.store(true, std::memory_order_relaxed);
  absl::Time deadline = flush > absl::ZeroDuration() ? Clock::system().now() + flush : absl::InfinitePast();
  context_->loop->post([self = shared_from_this(), deadline] { self->begin_close_in_loop(deadline); });
}

void TcpConnection::adopt_in_loop(Descriptor socket) {
  socket_ = std::move(socket);
  connected_ = true;
  context_->connections.insert(shared_from_this());
  MutexLock lock(mutex_);
  state_ = State::kOpen;
  write_fd_ = socket_.get();
}

void TcpConnection::listen_in_loop(std::shared_ptr<ConnectionListener> listener) {
  listener_ = std::move(listener);
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    finish_in_loop(id.status());
    return;
  }
  handler_id_ = *id;
}

void TcpConnection::shut_down_in_loop() {
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
  }
  finish_in_loop(
      absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
}

void TcpConnection::on_events_in_loop(uint32_t events) {
  if (!connected_) {
    if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) finish_candidate_in_loop();
    // The same event may tell that the other end has sent something, or closed already; it comes only once.
    if (!connected_) return;
  }
  // Writing first: it frees the memory of what leaves.
  if (events & EPOLLOUT) socket_writable_in_loop();
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    read_in_loop((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0);
  }
}

void TcpConnection::read_in_loop(bool until_end) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (!socket_.valid()) return;
    iovec places[kMaxPlaces + 1];
    int count = 0;
    if (!close_called_.load(std::memory_order_relaxed)) {
      absl::StatusOr<int> found = parser_.places(places, kMaxPlaces);
      if (!found.ok()) {
        finish_in_loop(with_context(found.status(), absl::StrCat("connection with ", peer_address_)));
        return;
      }
      count = *found;
    }
    std::size_t room = 0;
    for (int i = 0; i < count; ++i) room += places[i].iov_len;
    // What follows the piece that is due comes along into scratch memory, so that small pieces cost no call
    // each.
    absl::Span<char> scratch = context_->loop->scratch_in_loop();
    places[count] = {scratch.data(), scratch.size()};
    ssize_t result = ::readv(socket_.get(), places, count + 1);
    if (result == 0) {
      finish_in_loop(unavailable(parser_.between_frames()
                                     ? "the other end closed it"
                                     : "the other end closed it in the middle of a message"));
      return;
    }
    if (result < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) finish_in_loop(unavailable(std::strerror(errno)));
      return;
    }
    std::size_t bytes = static_cast<std::size_t>(result);
    std::size_t in_places = std::min(bytes, room);
    if (count > 0 && !accept_bytes_in_loop(in_places, scratch.first(bytes - in_places))) return;
    // Less than was asked for: the socket is empty, and epoll will tell of more.
    if (bytes < room + scratch.size() && !until_end) return;
  }
  // Others have their turn; the edge that was told will not be told again.
  context_->loop->post([self = shared_from_this(), until_end] { self->read_in_loop(until_end); });
}

bool TcpConnection::accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond) {
  absl::Status status = parser_.advance(in_places);
  while (status.ok()) {
    if (parser_.complete()) {
      deliver_in_loop();
      if (!socket_.valid()) return false;
    }
    if (beyond.empty() || close_called_.load(std::memory_order_relaxed)) return true;
    status = parser_.consume(beyond);
  }
  finish_in_loop(with_context(status, absl::StrCat("connection with ", peer_address_)));
  return false;
}

void TcpConnection::deliver_in_loop() {
  Message message = parser_.take();
  if (!close_called_.load(std::memory_order_relaxed)) listener_->on_message(*this, std::move(message));
}

void TcpConnection::begin_close_in_loop(absl::Time deadline) {
  absl::Status reason;
  bool drained;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kClosing) return;
    reason = *close_reason_;
    drained = connected_ && queue_.empty();
  }
  if (deadline <= Clock::system().now()) {
    finish_in_loop(std::move(reason));
    return;
  }
  close_timer_ = context_->loop->schedule_in_loop(
      deadline, [self = shared_from_this(), reason] { self->finish_in_loop(reason); });
  if (drained) queue_drained_in_loop();
}

// Everything is in the socket. Closing it now could destroy what the other end has not read yet (a reset
// follows when bytes arrive here that nobody will read), so only this direction ends and the other end closes
// in turn.
void TcpConnection::queue_drained_in_loop() {
  if (lingering_ || !socket_.valid()) return;
  lingering_ = true;
  ::shutdown(socket_.get(), SHUT_WR);
}

void TcpConnection::finish_in_loop(absl::Status reason) {
  std::deque<OutgoingMessage> unsent;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (close_reason_.has_value()) {
      reason = *close_reason_;
    } else {
      close_reason_ = reason;
    }
    write_fd_ = -1;
    // The memory that a write under way reads, and its descriptor, must stay until it has returned.
    while (writing_) write_finished_.wait(mutex_);
    unsent = queue_.clear();
  }
  std::shared_ptr<TcpConnection> self = shared_from_this();
  EventLoop& loop = *context_->loop;
  loop.cancel_in_loop(candidate_timer_);
  loop.cancel_in_loop(close_timer_);
  if (handler_id_ != 0) loop.remove_in_loop(socket_.get(), handler_id_);
  socket_.reset();
  parser_.take();
  unsent.clear();
  if (listener_ != nullptr) {
    listener_->on_closed(*this, std::move(reason));
    listener_.reset();
  }
  context_->connections.erase(self);
  context_->end_if_done_in_loop();
}

absl::Status TcpConnection::unavailable(absl::string_view cause) const {
  return absl::UnavailableError(absl::StrCat("connection with ", peer_address_, ": ", cause));
}

}  // namespace gradwire::transport
