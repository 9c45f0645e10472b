#include "transport/shm/shm_acceptor.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "transport/shm/shm_connection.h"

namespace gradwire::transport {
namespace {

// How long a process without free descriptors leaves those who connect waiting before it looks again.
constexpr absl::Duration kRetryAccept = absl::Milliseconds(100);

// For messages to people.
std::string name_of_peer(const Descriptor& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return "shm:unknown process";
  return absl::StrCat("shm:process ", peer.pid);
}

}  // namespace

absl::StatusOr<Descriptor> listen_at(const ShmAddress& address) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const UnixAddress at = abstract_address(address);
  if (!socket.valid() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address.to_string(), ": ", std::strerror(errno)));
  }
  return socket;
}

void ShmAcceptor::start_in_loop() {
  if (!socket_.valid()) return;
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    log(LogLevel::kError, "no connections will be accepted: ", id.status().ToString());
    return;
  }
  handler_id_ = *id;
}

void ShmAcceptor::stop_in_loop() {
  context_->loop->cancel_in_loop(retry_timer_);
  if (handler_id_ != 0) context_->loop->remove_in_loop(socket_.get(), handler_id_);
  socket_.reset();
  on_accept_.reset();
}

void ShmAcceptor::on_events_in_loop(uint32_t) { accept_in_loop(); }

void ShmAcceptor::accept_in_loop() {
  while (socket_.valid()) {
    Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      out_of_descriptors_ = false;
      auto connection = std::make_shared<ShmConnection>(context_, name_of_peer(socket));
      connection->accept_in_loop(std::move(socket), on_accept_);
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
