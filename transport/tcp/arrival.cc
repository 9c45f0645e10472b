#include "gradwire/transport/tcp/arrival.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/log.h"
#include "gradwire/transport/tcp/tcp_connection.h"

namespace gradwire::transport {

void Arrival::start_in_loop() {
  context_->arrivals.insert(shared_from_this());
  absl::StatusOr<uint64_t> id = context_->loop->add_in_loop(socket_.get(), shared_from_this());
  if (!id.ok()) {
    cancel_in_loop();
    return;
  }
  handler_id_ = *id;
  timer_ = context_->loop->schedule_in_loop(Clock::system().now() + context_->introduction_timeout,
                                            [self = shared_from_this()] { self->cancel_in_loop(); });
}

// cancel_in_loop() removes the arrival from the set, so iterating over it is not possible.
void TcpContext::shut_down_in_loop() {
  while (!arrivals.empty()) {
    const std::shared_ptr<Arrival> arrival = *arrivals.begin();
    arrival->cancel_in_loop();
  }
  LoopContext::shut_down_in_loop();
}

void Arrival::cancel_in_loop() { take_socket_in_loop(); }

Descriptor Arrival::take_socket_in_loop() {
  const std::shared_ptr<Arrival> self = shared_from_this();
  context_->loop->cancel_in_loop(std::exchange(timer_, 0));
  if (handler_id_ != 0) context_->loop->remove_in_loop(socket_.get(), std::exchange(handler_id_, 0));
  context_->arrivals.erase(self);
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
      kept->take_in_loop(take_socket_in_loop(), peer_);
      return;
    }
    if (received_.size() < Preface::kBytes) continue;
    absl::StatusOr<Preface> preface = Preface::parse(received_);
    if (!preface.ok()) {
      log(LogLevel::kWarning, "refused a connection from ", peer_, ": ", preface.status().message());
      cancel_in_loop();
    } else if (preface->kind == Preface::Kind::kStripe) {
      become_stripe_in_loop(*preface);
    } else {
      become_connection_in_loop(*preface);
    }
    return;
  }
}

// The token has 128 random bits. It identifies the connection to which later stripes belong, so two
// connections must not share it.
void Arrival::become_connection_in_loop(const Preface& preface) {
  if (context_->by_token.contains(preface.token)) {
    log(LogLevel::kWarning, "refused a connection from ", peer_, ": its token belongs to another connection");
    cancel_in_loop();
    return;
  }
  log(LogLevel::kDebug, "accepted a tcp connection from ", peer_);
  auto connection = std::make_shared<TcpConnection>(context_, peer_, preface.token);
  // Adopt the socket first: on_accept may already send on the connection.
  // Its events are watched only after the listener is known (listen_in_loop), so no message is read before.
  connection->adopt_in_loop(take_socket_in_loop());
  std::shared_ptr<ConnectionListener> listener = (*on_accept_)(connection);
  const bool refused = listener == nullptr;
  connection->listen_in_loop(std::move(listener));
  if (refused)
    connection->close(absl::PermissionDeniedError("the listening end refused the connection"),
                      absl::ZeroDuration());
}

void Arrival::become_stripe_in_loop(const Preface& preface) {
  auto found = context_->by_token.find(preface.token);
  if (found == context_->by_token.end()) {
    // Its connection may have been closed just before.
    cancel_in_loop();
    return;
  }
  TcpConnection& connection = *found->second;
  // Joining may fail and close the connection, which would destroy it during the call.
  const std::shared_ptr<LoopConnection> kept = connection.shared_from_this();
  connection.join_stripe_in_loop(preface, take_socket_in_loop());
}

}  // namespace gradwire::transport
