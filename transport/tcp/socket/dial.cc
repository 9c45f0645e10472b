#include "gradwire/transport/tcp/socket/dial.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/transport/refused.h"

namespace gradwire::transport {
namespace {

// If no process listens on a local port that the kernel also assigns to outgoing connections, a socket can
// connect to itself.
bool connected_to_itself(int socket) {
  SocketAddress own, peer;
  own.length = peer.length = sizeof(sockaddr_storage);
  return ::getsockname(socket, own.get(), &own.length) == 0 &&
         ::getpeername(socket, peer.get(), &peer.length) == 0 && own.length == peer.length &&
         std::memcmp(&own.storage, &peer.storage, own.length) == 0;
}

}  // namespace

void TcpDial::start_in_loop(absl::Time deadline, Done done) {
  deadline_ = deadline;
  done_ = std::move(done);
  try_next_in_loop();
}

// The error is "refused" only if every address refused: then no process listens there. Otherwise a process
// may listen there and be unreachable for now.
void TcpDial::try_next_in_loop() {
  const absl::Time now = Clock::system().now();
  if (next_ == addresses_.size() || now >= deadline_) {
    if (shortage_ != 0) {
      finish_in_loop(system_status(absl::StrCat("cannot connect to ", peer_), shortage_));
      return;
    }
    const std::string text = absl::StrCat("cannot connect to ", peer_, ": ", cause_);
    finish_in_loop(refusals_ > 0 && refusals_ == addresses_.size() ? refused_error(text)
                                                                   : absl::UnavailableError(text));
    return;
  }
  // The addresses that are left share the remaining time equally.
  const absl::Time until = now + (deadline_ - now) / static_cast<int64_t>(addresses_.size() - next_);
  socket_ = begin_to_connect(addresses_[next_++]);
  if (!socket_.valid()) {
    address_failed_in_loop(errno);
    return;
  }
  absl::StatusOr<uint64_t> id = loop_.add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    take_socket_in_loop();
    finish_in_loop(with_context(id.status(), absl::StrCat("cannot connect to ", peer_)));
    return;
  }
  handler_id_ = *id;
  timer_ = loop_.schedule_in_loop(until, [self = shared_from_this()] {
    EventLoop::run_in_loop(*self, [&self] { self->address_failed_in_loop(ETIME); });
  });
}

void TcpDial::on_events_in_loop(uint32_t events) {
  if (!socket_.valid() || (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
  int error = connect_error(socket_.get());
  if (error == 0 && connected_to_itself(socket_.get())) error = ECONNREFUSED;
  if (error != 0) {
    address_failed_in_loop(error);
    return;
  }
  finish_in_loop(take_socket_in_loop());
}

void TcpDial::address_failed_in_loop(int error) {
  if (error == ECONNREFUSED) ++refusals_;
  if (is_shortage(error)) shortage_ = error;
  cause_ = error == ETIME ? "no answer in time" : std::strerror(error);
  take_socket_in_loop();
  try_next_in_loop();
}

Descriptor TcpDial::take_socket_in_loop() {
  loop_.cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) loop_.remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  return std::move(socket_);
}

// `done_` is taken out first: it is called at most once, and it may destroy the owner of this object.
void TcpDial::finish_in_loop(absl::StatusOr<Descriptor> result) {
  if (Done done = std::exchange(done_, nullptr)) done(std::move(result));
}

void TcpDial::cancel_in_loop() {
  done_ = nullptr;
  take_socket_in_loop();
}

Descriptor begin_to_connect(const SocketAddress& address) {
  Descriptor socket = Descriptor::from(
      [&] { return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket.valid() || ::connect(socket.get(), address.get(), address.length) == 0 ||
      errno == EINPROGRESS) {
    return socket;
  }
  // close() may change errno.
  const int error = errno;
  socket.reset();
  errno = error;
  return socket;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace gradwire::transport
