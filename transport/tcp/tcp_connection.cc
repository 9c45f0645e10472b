#include "gradwire/transport/tcp/tcp_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::transport {

void set_connection_options(int socket, const TcpOptions& options) {
  auto set = [socket](int level, int name, int value) {
    ::setsockopt(socket, level, name, &value, sizeof(value));
  };
  auto seconds = [](absl::Duration duration) {
    // 32,767 is the kernel's limit for the keepalive options.
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Seconds(duration), 1, 32'767));
  };
  // Messages are sent as a whole, so waiting for more bytes (Nagle's algorithm) only delays them. Keepalive
  // finds a peer that vanished while the connection is idle; the user timeout one that vanished while data
  // is under way. After 3 unanswered keepalive probes the peer counts as gone.
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds(options.keepalive_idle));
  set(IPPROTO_TCP, TCP_KEEPINTVL, seconds(options.keepalive_interval));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, seconds(options.user_timeout) * 1000);
}

TcpConnection::TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address,
                             const Preface::Token& token)
    : LoopConnection(context, std::move(peer_address)),
      context_(std::move(context)),
      token_(token),
      sender_(*this, context_->options.limits,
              context_->options.stripes > 0 ? context_->options.stripe_from_bytes
                                            : std::numeric_limits<uint64_t>::max()),
      stripes_(*this, sender_, context_->options, token, [this] { receiver_.shares_arrived_in_loop(); }),
      receiver_(*this, sender_, stripes_, context_->options) {}

absl::StatusOr<uint64_t> TcpConnection::send(Message message) {
  bool want_stripes = false;
  absl::StatusOr<uint64_t> ticket = sender_.send(message, want_stripes);
  if (want_stripes) post([this] { stripes_.want_in_loop(); });
  return ticket;
}

void TcpConnection::connect_in_loop(std::vector<HostAddress> addresses,
                                    std::shared_ptr<ConnectionListener> listener, absl::Time deadline) {
  listener_ = std::move(listener);
  if (!begin_in_loop()) return;
  search_ = std::make_shared<AddressSearch>(context_->loop, std::move(addresses));
  search_->start_in_loop(
      context_->lookups, deadline,
      [this, self = shared_from_this(), deadline](absl::StatusOr<std::vector<SocketAddress>> found) {
        run_in_loop([&] { found_in_loop(std::move(found), deadline); });
      });
}

void TcpConnection::found_in_loop(absl::StatusOr<std::vector<SocketAddress>> found, absl::Time deadline) {
  if (!found.ok()) {
    finish_in_loop(found.status());
    return;
  }
  std::erase_if(*found, [this](const SocketAddress& each) { return !context_->allows(each); });
  if (found->empty()) {
    finish_in_loop(leaves_host_error(absl::StrCat("cannot connect to ", peer_address())));
  } else {
    open_in_loop(*std::move(found), deadline);
  }
}

void TcpConnection::open_in_loop(std::vector<SocketAddress> addresses, absl::Time deadline) {
  opening_ = std::make_shared<TcpOpening>(
      loop(), TcpOpening::Options{.peer = peer_address(),
                                  .addresses = std::move(addresses),
                                  .credentials = context_->options.credentials,
                                  .facts = context_->facts(""),
                                  .preface = preface().encode(),
                                  .prepare = [context = context_](int socket) {
                                    set_connection_options(socket, context->options);
                                    return context->check_server_in_loop(socket);
                                  }});
  opening_->start_in_loop(deadline, [this, self = shared_from_this()](absl::StatusOr<SecuredSocket> socket) {
    run_in_loop([&] { opened_in_loop(std::move(socket)); });
  });
}

void TcpConnection::opened_in_loop(absl::StatusOr<SecuredSocket> socket) {
  if (!socket.ok()) {
    finish_in_loop(socket.status());
    return;
  }
  stripes_.start_in_loop(opening_->address());
  // The accepting end may demand a proof, and answer the preface with a refusal.
  if (context_->proof == Preface::Proof::kNone) receiver_.expect_refusal_in_loop();
  start_in_loop(*std::move(socket));
  watch_in_loop();
  sender_.write_queued();
  // After a handshake the queue may be empty: then no write reports that it has been drained.
  if (close_called()) flush_in_loop();
}

Preface TcpConnection::preface() const { return {.proof = context_->proof, .token = token_}; }

void TcpConnection::begin_with_preface() {
  if (context_->proof == Preface::Proof::kNone) sender_.push_bytes(preface().encode());
}

security::PeerIdentity TcpConnection::peer() const {
  MutexLock lock(mutex_);
  return peer_;
}

void TcpConnection::adopt_in_loop(SecuredSocket socket, Admission::Id place) {
  place_ = place;
  context_->admission.connect(place);
  context_->connections.insert(shared_from_this());
  context_->by_token.emplace(token_, this);
  stripes_.start_in_loop(std::nullopt);
  start_in_loop(std::move(socket));
}

void TcpConnection::listen_in_loop(std::shared_ptr<ConnectionListener> listener) {
  listener_ = std::move(listener);
  await_introduction_in_loop();
  watch_in_loop();
}

void TcpConnection::start_in_loop(SecuredSocket socket) {
  {
    MutexLock lock(mutex_);
    peer_ = std::move(socket.peer);
  }
  socket_ = std::move(socket.socket);
  stream_ = std::move(socket.stream);
  sender_.start(socket_.get(), stream_.get());
  receiver_.start_in_loop(socket_.get(), stream_.get());
}

void TcpConnection::watch_in_loop() {
  absl::StatusOr<uint64_t> id = loop().add_in_loop(socket_.get(), keep<EventHandler>(this));
  if (id.ok()) {
    handler_id_ = *id;
  } else {
    finish_in_loop(id.status());
    return;
  }
  // The stream may have decrypted bytes already, which the socket does not report again. There is no listener
  // if this end refuses the connection.
  if (stream_ != nullptr && listener_ != nullptr) receiver_.read_in_loop(false);
}

void TcpConnection::on_events_in_loop(uint32_t events) {
  // Write first: it frees the memory of the sent messages.
  if (events & EPOLLOUT) sender_.writable_in_loop(0);
  if (receiver_.awaits_shares_in_loop() && (events & (EPOLLERR | EPOLLHUP)) != 0) {
    receiver_.cut_off_in_loop();
    return;
  }
  if (events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    receiver_.read_in_loop((events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0);
  }
}

void TcpConnection::flush_in_loop() {
  if (socket_.valid() && sender_.drained()) drained_in_loop();
  receiver_.discard_in_loop();
}

// All data has been written to the socket. Closing it now could destroy data that the peer has not read yet:
// the kernel sends a reset if bytes arrive that no process will read. So close only this direction; the peer
// then closes the other one.
void TcpConnection::drained_in_loop() {
  if (!socket_.valid() || std::exchange(lingering_, true)) return;
  if (stream_ != nullptr) stream_->end_writes();
  ::shutdown(socket_.get(), SHUT_WR);
}

// Messages that arrived before the loss are still delivered.
void TcpConnection::lost_in_loop(absl::string_view cause) { receiver_.read_to_end_in_loop(cause); }

// The sender must have stopped using the socket before its descriptor is closed: a new socket could get the
// same number, and data of this connection would go to it.
void TcpConnection::release_in_loop(const absl::Status& reason) {
  sender_.end(reason);
  if (search_ != nullptr) search_->cancel_in_loop();
  if (opening_ != nullptr) opening_->cancel_in_loop();
  if (handler_id_ != 0) loop().remove_in_loop(socket_.get(), handler_id_);
  stripes_.end_in_loop();
  receiver_.end_in_loop();
  stream_.reset();
  socket_.reset();
  context_->admission.leave(place_);
  const auto found = context_->by_token.find(token_);
  if (found != context_->by_token.end() && found->second == this) context_->by_token.erase(found);
}

}  // namespace gradwire::transport
