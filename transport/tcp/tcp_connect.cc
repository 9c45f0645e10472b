// The part of TcpConnection that establishes it.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/refused.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

// Without a listener on a port of this host that the kernel also gives to outgoing connections, a socket can
// end up connected to itself.
bool connected_to_itself(int socket) {
  SocketAddress own, peer;
  own.length = peer.length = sizeof(sockaddr_storage);
  return ::getsockname(socket, own.get(), &own.length) == 0 &&
         ::getpeername(socket, peer.get(), &peer.length) == 0 && own.length == peer.length &&
         std::memcmp(&own.storage, &peer.storage, own.length) == 0;
}

}  // namespace

void set_connection_options(int socket, const TcpOptions& options) {
  auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  };
  auto seconds = [](absl::Duration duration) {
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Seconds(duration), 1, 32'767));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds(options.keepalive_idle));
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds(options.keepalive_interval));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, seconds(options.user_timeout) * 1000);
}

void TcpConnection::begin_with_preface() {
  MutexLock lock(mutex_);
  lanes_.front().queue.push_bytes(Preface{.token = token_}.encode());
}

void TcpConnection::connect_in_loop(std::vector<SocketAddress> candidates,
                                    std::shared_ptr<ConnectionListener> listener, absl::Time deadline) {
  context_->connections.insert(shared_from_this());
  listener_ = std::move(listener);
  candidates_ = std::move(candidates);
  connect_deadline_ = deadline;
  if (context_->shutting_down) {
    finish_in_loop(
        absl::CancelledError(absl::StrCat("the transport shut down; connection with ", peer_address_)));
    return;
  }
  try_next_candidate_in_loop();
}

void TcpConnection::try_next_candidate_in_loop() {
  absl::Time now = Clock::system().now();
  if (next_candidate_ == candidates_.size() || now >= connect_deadline_) {
    if (last_connect_error_.empty()) last_connect_error_ = "no answer in time";
    const std::string text = absl::StrCat("cannot connect to ", peer_address_, ": ", last_connect_error_);
    finish_in_loop(refusals_ > 0 && refusals_ == candidates_.size() ? refused_error(text)
                                                                    : absl::UnavailableError(text));
    return;
  }
  // The candidates that are left share the time that is left.
  auto left = static_cast<int64_t>(candidates_.size() - next_candidate_);
  absl::Time until = now + (connect_deadline_ - now) / left;
  const SocketAddress& address = candidates_[next_candidate_++];
  socket_ = Descriptor(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket_.valid()) {
    candidate_failed_in_loop(std::strerror(errno));
    return;
  }
  if (::connect(socket_.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    if (error == ECONNREFUSED) ++refusals_;
    candidate_failed_in_loop(std::strerror(error));
    return;
  }
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    candidate_failed_in_loop(std::string(id.status().message()));
    return;
  }
  handler_id_ = *id;
  candidate_timer_ = context_->loop->schedule_in_loop(
      until, [self = shared_from_this()] { self->candidate_failed_in_loop("no answer in time"); });
}

void TcpConnection::finish_candidate_in_loop() {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0 && connected_to_itself(socket_.get())) error = ECONNREFUSED;
  if (error != 0) {
    if (error == ECONNREFUSED) ++refusals_;
    candidate_failed_in_loop(std::strerror(error));
    return;
  }
  established_in_loop();
}

void TcpConnection::candidate_failed_in_loop(std::string cause) {
  if (connected_) return;
  last_connect_error_ = std::move(cause);
  context_->loop->cancel_in_loop(candidate_timer_);
  if (handler_id_ != 0) context_->loop->remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  socket_.reset();
  try_next_candidate_in_loop();
}

void TcpConnection::established_in_loop() {
  context_->loop->cancel_in_loop(candidate_timer_);
  set_connection_options(socket_.get(), context_->options);
  connected_ = true;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kConnecting) state_ = State::kOpen;
    lanes_.front().fd = socket_.get();
  }
  write_queued();
}

}  // namespace gradwire::transport
