#include "gradwire/transport/tcp/arrival.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"
#include "gradwire/security/token/record.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {

TcpOptions TcpContext::allowed(TcpOptions options) {
  if (options.credentials == nullptr) options.credentials = security::no_credentials();
  // The bytes of a stripe are not encrypted.
  if (proof_of(options.credentials->kind()) == Preface::Proof::kCertificate) options.stripes = 0;
  return options;
}

namespace {

// Interval between attempts to find the user of a client while this process has no descriptor left.
constexpr absl::Duration kRetryUser = absl::Milliseconds(100);

// A connection with certificates has no stripes, so only a token needs a handshake. Its purpose is another
// one than that of connections: no handshake of a connection can be led to a stripe.
security::ConnectionFacts stripe_facts(const TcpOptions& options, const std::string& peer_address) {
  return {.purpose = absl::StrCat(options.purpose, "/stripe"),
          .own_name = options.own_name,
          .peer_address = peer_address};
}

bool stripes_need_a_proof(const TcpOptions& options) {
  return proof_of(options.credentials->kind()) == Preface::Proof::kToken;
}

}  // namespace

std::unique_ptr<security::SocketHandshake> TcpContext::stripe_handshake_of_acceptor(
    int socket, const std::string& peer_address) const {
  if (!stripes_need_a_proof(options)) return nullptr;
  return options.credentials->connected(socket, stripe_facts(options, peer_address));
}

std::unique_ptr<security::SocketHandshake> stripe_handshake_of_opener(const TcpOptions& options, int socket,
                                                                      const std::string& peer_address) {
  if (!stripes_need_a_proof(options)) return nullptr;
  return options.credentials->accepted(socket, stripe_facts(options, peer_address));
}

absl::Status TcpContext::check_client_in_loop(int socket) {
  if (options.credentials->may_leave_host()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_peer_user(socket));
  return users.check(user, "a connection over the loopback interface");
}

// Another user's process may listen at the port where this process expects its own job.
absl::Status TcpContext::check_server_in_loop(int socket) {
  if (options.credentials->may_leave_host()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_server_user(socket));
  return users.check(user, "the server of a connection over the loopback interface");
}

// cancel_in_loop() removes the arrival from the table, so iterating over it is not possible.
void TcpContext::shut_down_in_loop() {
  while (!arrivals.empty()) {
    const std::shared_ptr<Arrival> arrival = arrivals.begin()->second;
    arrival->cancel_in_loop();
  }
  LoopContext::shut_down_in_loop();
}

void Arrival::accept_in_loop(const std::shared_ptr<TcpContext>& context, Descriptor socket,
                             const SocketAddress& peer, const OnAccept& on_accept) {
  const std::string host = host_to_string(peer);
  const absl::Time now = Clock::system().now();
  const Admission::Outcome outcome = context->admission.arrive(host, now);
  if (outcome.replaced != 0) {
    const std::shared_ptr<Arrival> replaced = context->arrivals.at(outcome.replaced);
    replaced->cancel_in_loop();
  }
  if ((outcome.admitted == 0 || outcome.replaced != 0) && context->warnings.allows("", now)) {
    log(LogLevel::kWarning, "too many sockets have not proved who they are: ", context->admission.refused(),
        " were closed at once and ", context->admission.replaced(), " after a while, the last one from ",
        host, "; see Limits::max_arrivals and max_arrivals_per_address");
  }
  if (outcome.admitted == 0) return;
  set_connection_options(socket.get(), context->options);
  absl::Cleanup leave = [&] { context->admission.leave(outcome.admitted); };
  const auto arrival = std::make_shared<Arrival>(context, outcome.admitted, peer, on_accept);
  std::move(leave).Cancel();
  EventLoop::run_in_loop(*arrival, [&] { arrival->start_in_loop(std::move(socket)); });
}

void Arrival::start_in_loop(Descriptor socket) {
  socket_ = std::move(socket);
  context_->arrivals.emplace(place_, shared_from_this());
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    cancel_in_loop();
    return;
  }
  handler_id_ = *id;
  deadline_ = Clock::system().now() + context_->introduction_timeout;
  timer_ = context_->loop->schedule_in_loop(deadline_, [self = shared_from_this()] {
    self->timer_ = 0;
    self->cancel_in_loop();
  });
  // The preface of an honest peer is usually there already. So many of them that connect at the same time do
  // not take places from each other.
  on_events_in_loop(0);
}

void Arrival::cancel_in_loop() {
  const std::shared_ptr<Arrival> self = shared_from_this();
  take_socket_in_loop();
  if (handshake_ != nullptr) handshake_->cancel_in_loop();
  if (farewell_ != nullptr) farewell_->cancel_in_loop();
  end_in_loop();
}

void Arrival::failed_in_loop(const absl::Status& error) {
  warn_in_loop(error.message());
  cancel_in_loop();
}

void Arrival::end_in_loop() {
  context_->arrivals.erase(place_);
  if (!context_->admission.is_connection(place_)) context_->admission.leave(place_);
}

Descriptor Arrival::take_socket_in_loop() {
  context_->loop->cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) context_->loop->remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  return std::move(socket_);
}

// Reads no byte behind the preface, or behind the first bytes of the other protocol: these are for others.
std::size_t Arrival::wanted_bytes() const {
  const std::shared_ptr<const OtherProtocol>& other = context_->options.other_protocol;
  if (other == nullptr || received_.size() >= other->first_bytes.size()) return Preface::kBytes;
  return other->first_bytes.compare(0, received_.size(), received_) == 0 ? other->first_bytes.size()
                                                                         : Preface::kBytes;
}

void Arrival::on_events_in_loop(uint32_t) {
  const auto again = [self = shared_from_this()] { EventLoop::handle_in_loop(*self, 0); };
  if (turn_.take(context_->loop->turns_in_loop(), again)) read_in_loop();
}

void Arrival::read_in_loop() {
  const std::shared_ptr<Arrival> self = shared_from_this();
  while (socket_.valid()) {
    char bytes[Preface::kBytes];
    const ssize_t got = ::recv(socket_.get(), bytes, wanted_bytes() - received_.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // The peer has closed the socket or sends nothing useful: forget it without a message.
    if (got <= 0) {
      cancel_in_loop();
      return;
    }
    received_.append(bytes, static_cast<std::size_t>(got));
    if (const auto& other = context_->options.other_protocol;
        other != nullptr && received_ == other->first_bytes) {
      const std::shared_ptr<const OtherProtocol> kept = other;
      Descriptor socket = take_socket_in_loop();
      end_in_loop();
      kept->take_in_loop(std::move(socket), peer_);
      return;
    }
    if (received_.size() < Preface::kBytes) continue;
    preface_arrived_in_loop();
    return;
  }
}

void Arrival::preface_arrived_in_loop() {
  const absl::StatusOr<Preface> preface = Preface::parse(received_);
  if (!preface.ok()) {
    if (Preface::has_magic(received_)) {
      // Another release of Gradwire, which may read a refusal.
      refuse_in_loop(take_socket_in_loop(), preface.status().message(), preface.status().message());
    } else {
      warn_in_loop(preface.status().message());
      cancel_in_loop();
    }
  } else if (preface->kind == Preface::Kind::kStripe) {
    become_stripe_in_loop(*preface);
  } else {
    begin_connection_in_loop(*preface);
  }
}

// The token has 128 random bits. It identifies the connection to which later stripes belong, so two
// connections must not share it.
void Arrival::begin_connection_in_loop(const Preface& preface) {
  Descriptor socket = take_socket_in_loop();
  std::string reason;
  if (preface.proof != context_->proof) {
    reason = other_proof_sentence(preface.proof, context_->proof);
  } else if (!context_->admission.may_connect(place_)) {
    reason = absl::StrCat("too many connections from ", host_, ": the limit is ",
                          context_->options.limits.max_connections_per_address,
                          " (Limits::max_connections_per_address)");
  } else if (context_->by_token.contains(preface.token)) {
    reason = "its token belongs to another connection";
  } else if (const absl::Status user = context_->check_client_in_loop(socket.get());
             is_local_shortage(user) && Clock::system().now() + kRetryUser < deadline_) {
    // It says nothing about the client. The arrival keeps its place meanwhile, and nothing of it is read.
    socket_ = std::move(socket);
    timer_ = context_->loop->schedule_in_loop(
        Clock::system().now() + kRetryUser, [self = shared_from_this(), preface] {
          EventLoop::run_in_loop(*self, [&] { self->begin_connection_in_loop(preface); });
        });
    return;
  } else if (!user.ok()) {
    reason = std::string(user.message());
  }
  if (!reason.empty()) {
    refuse_in_loop(std::move(socket), reason, reason);
    return;
  }
  std::unique_ptr<security::SocketHandshake> handshake =
      context_->options.credentials->accepted(socket.get(), context_->facts(peer_));
  if (handshake == nullptr) {
    become_connection_in_loop(preface, SecuredSocket{.socket = std::move(socket)});
    return;
  }
  handshake_ = std::make_shared<TcpHandshake>(*context_->loop, std::move(socket), std::move(handshake));
  handshake_->start_in_loop(
      deadline_, [self = shared_from_this(), preface](const absl::Status& status, SecuredSocket secured) {
        self->handshake_.reset();
        EventLoop::run_in_loop(*self, [&] {
          if (status.ok()) {
            self->become_connection_in_loop(preface, std::move(secured));
          } else {
            // The handshake has sent the reason, as far as that is possible.
            self->refuse_in_loop(std::move(secured.socket), status.message(), "");
          }
        });
      });
}

void Arrival::become_connection_in_loop(const Preface& preface, SecuredSocket socket) {
  // Other sockets may have become connections during the handshake.
  if (context_->by_token.contains(preface.token) || !context_->admission.may_connect(place_)) {
    socket.stream.reset();
    refuse_in_loop(std::move(socket.socket), "another connection has taken its place", "");
    return;
  }
  log(LogLevel::kDebug, "accepted a tcp connection from ", peer_);
  auto connection = std::make_shared<TcpConnection>(context_, peer_, preface.token);
  // Adopt the socket first: on_accept may already send on the connection.
  // Its events are watched only after the listener is known (listen_in_loop), so no message is read before.
  connection->adopt_in_loop(std::move(socket), place_);
  end_in_loop();
  // From here on the connection ends with an exception, and not the arrival.
  connection->run_in_loop([&] {
    std::shared_ptr<ConnectionListener> listener = (*on_accept_)(connection);
    const bool refused = listener == nullptr;
    connection->listen_in_loop(std::move(listener));
    if (refused)
      connection->close(absl::PermissionDeniedError("the listening end refused the connection"),
                        absl::ZeroDuration());
  });
}

// Somebody who reads the network knows the token of the connection from its preface. So a stripe of a
// connection with a proof gives the same proof.
void Arrival::become_stripe_in_loop(const Preface& preface) {
  Descriptor socket = take_socket_in_loop();
  const bool expected = context_->options.stripes > 0 && context_->by_token.contains(preface.token);
  std::unique_ptr<security::SocketHandshake> handshake =
      expected ? context_->stripe_handshake_of_acceptor(socket.get(), peer_) : nullptr;
  if (handshake == nullptr) {
    join_in_loop(preface, std::move(socket));
    return;
  }
  handshake_ = std::make_shared<TcpHandshake>(*context_->loop, std::move(socket), std::move(handshake));
  handshake_->start_in_loop(
      deadline_, [self = shared_from_this(), preface](const absl::Status& status, SecuredSocket secured) {
        self->handshake_.reset();
        EventLoop::run_in_loop(*self, [&] {
          if (status.ok()) {
            self->join_in_loop(preface, std::move(secured.socket));
          } else {
            self->refuse_in_loop(std::move(secured.socket), status.message(), "");
          }
        });
      });
}

void Arrival::join_in_loop(const Preface& preface, Descriptor socket) {
  end_in_loop();
  auto found = context_->by_token.find(preface.token);
  // Its connection may have been closed just before, or is not authenticated yet.
  if (found == context_->by_token.end()) return;
  TcpConnection& connection = *found->second;
  // Joining may fail and close the connection, which would destroy it during the call.
  const std::shared_ptr<LoopConnection> kept = connection.shared_from_this();
  connection.join_stripe_in_loop(preface, std::move(socket));
}

void Arrival::warn_in_loop(absl::string_view reason) const {
  if (!context_->warnings.allows(host_, Clock::system().now())) return;
  log(LogLevel::kWarning, "refused a connection from ", peer_, ": ", reason,
      " (more refusals of this host in the next minute are not logged)");
}

void Arrival::refuse_in_loop(Descriptor socket, absl::string_view reason, absl::string_view sentence) {
  warn_in_loop(reason);
  farewell_ = std::make_shared<TcpFarewell>(*context_->loop, std::move(socket),
                                            [self = shared_from_this()] { self->end_in_loop(); });
  farewell_->start_in_loop(sentence.empty() ? "" : security::Record::refusal(sentence).encode());
}

}  // namespace gradwire::transport
