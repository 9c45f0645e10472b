#include "gradwire/transport/tcp/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"

namespace gradwire::transport {
TcpConnection::TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address,
                             const Preface::Token& token)
    : context_(std::move(context)),
      peer_address_(std::move(peer_address)),
      token_(token),
      parser_(context_->options.limits, *context_->pool),
      lanes_(1) {
  striping_.from_bytes = std::max<uint64_t>(context_->options.stripe_from_bytes, kMinStripedBytes);
}

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
  connected_ = accepted_ = true;
  context_->connections.insert(shared_from_this());
  context_->by_token.emplace(token_, this);
  MutexLock lock(mutex_);
  state_ = State::kOpen;
  lanes_.front().fd = socket_.get();
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
  if (events & EPOLLOUT) socket_writable_in_loop(0);
  if (awaits_shares_ && (events & (EPOLLERR | EPOLLHUP)) != 0) {
    // The other end is gone; nothing that comes later could make a message of what has come.
    finish_in_loop(unavailable("the other end closed it in the middle of a message"));
    return;
  }
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    read_in_loop((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0);
  }
}

void TcpConnection::begin_close_in_loop(absl::Time deadline) {
  absl::Status reason;
  bool drained;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kClosing) return;
    reason = *close_reason_;
    drained = connected_ && drained_locked();
  }
  if (deadline <= Clock::system().now()) {
    finish_in_loop(std::move(reason));
    return;
  }
  close_timer_ = context_->loop->schedule_in_loop(
      deadline, [self = shared_from_this(), reason] { self->finish_in_loop(reason); });
  if (drained) queue_drained_in_loop();
  // What comes from now on is read to be dropped, without waiting for the rest of a message.
  if (std::exchange(awaits_shares_, false)) read_in_loop(true);
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
  std::vector<Message> unsent;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (close_reason_.has_value()) {
      reason = *close_reason_;
    } else {
      close_reason_ = reason;
    }
    for (Lane& lane : lanes_) lane.fd = -1;
    // The memory that a write under way reads, and its descriptor, must stay until it has returned.
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      await_write_locked(lane);
      for (Message& message : lanes_[lane].queue.clear()) unsent.push_back(std::move(message));
    }
  }
  std::shared_ptr<TcpConnection> self = shared_from_this();
  EventLoop& loop = *context_->loop;
  loop.cancel_in_loop(candidate_timer_);
  loop.cancel_in_loop(close_timer_);
  loop.cancel_in_loop(shares_timer_);
  if (handler_id_ != 0) loop.remove_in_loop(socket_.get(), handler_id_);
  socket_.reset();
  remove_stripes_in_loop();
  awaits_shares_ = false;
  parser_.take();
  unsent.clear();
  if (listener_ != nullptr) {
    listener_->on_closed(*this, std::move(reason));
    listener_.reset();
  }
  if (accepted_) context_->by_token.erase(token_);
  context_->connections.erase(self);
  context_->end_if_done_in_loop();
}

absl::Status TcpConnection::unavailable(absl::string_view cause) const {
  return absl::UnavailableError(absl::StrCat("connection with ", peer_address_, ": ", cause));
}

}  // namespace gradwire::transport
