#include "transport/tcp/acceptor.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "transport/tcp/address.h"
#include "transport/tcp/arrival.h"
#include "transport/tcp/tcp_connection.h"

namespace gradwire::transport {
namespace {

// How long a process without free descriptors leaves those who connect waiting before it looks again.
constexpr absl::Duration kRetryAccept = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, resolve_bind_addresses(host, port));
  std::string cause = "no address";
  for (const SocketAddress& address : addresses) {
    Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int one = 1, zero = 0;
    if (socket.valid()) {
      // A port whose last connections linger can be listened on again; one that is in use cannot.
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
      if (address.storage.ss_family == AF_INET6) {
        ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
      }
    }
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    if (socket.valid() && ::bind(socket.get(), address.get(), address.length) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0 &&
        ::getsockname(socket.get(), bound.get(), &bound.length) == 0) {
      // Both families keep the port at the same place.
      int bound_port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
      return ListeningSocket{std::move(socket), bound_port};
    }
    cause = absl::StrCat(to_string(address), ": ", std::strerror(errno));
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", cause));
}

void Acceptor::start_in_loop() {
  if (!socket_.valid()) return;
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    log(LogLevel::kError, "no connections will be accepted: ", id.status().ToString());
    return;
  }
  handler_id_ = *id;
}

void Acceptor::stop_in_loop() {
  context_->loop->cancel_in_loop(retry_timer_);
  if (handler_id_ != 0) context_->loop->remove_in_loop(socket_.get(), handler_id_);
  socket_.reset();
  while (!context_->arrivals.empty()) {
    const std::shared_ptr<Arrival> arrival = *context_->arrivals.begin();
    arrival->cancel_in_loop();
  }
  on_accept_ = nullptr;
}

void Acceptor::on_events_in_loop(uint32_t) { accept_in_loop(); }

void Acceptor::accept_in_loop() {
  while (socket_.valid()) {
    SocketAddress peer;
    peer.length = sizeof(peer.storage);
    Descriptor socket(::accept4(socket_.get(), peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      out_of_descriptors_ = false;
      set_connection_options(socket.get(), context_->options);
      std::make_shared<Arrival>(context_, std::move(socket), to_string(peer), on_accept_)->start_in_loop();
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the backlog, and nothing would tell of it again.
      if (!out_of_descriptors_) {
        log(LogLevel::kWarning, "cannot accept connections for now: ", std::strerror(errno));
        out_of_descriptors_ = true;
      }
      context_->loop->cancel_in_loop(retry_timer_);
      retry_timer_ = context_->loop->schedule_in_loop(
          Clock::system().now() + kRetryAccept, [self = shared_from_this()] { self->accept_in_loop(); });
      return;
    }
    // Anything else befell the one connection that was about to be accepted.
  }
}

}  // namespace gradwire::transport
