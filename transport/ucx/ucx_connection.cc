// UCX's callbacks report events at any time during progress. They only record them and touch the
// connection. settle_in_loop() then does, in this order: deliver complete messages, give up or close after
// a failure, close after the peer's goodbye, post queued messages. If the time of the round is over before,
// the rest waits for tasks that the loop runs in later rounds (turns.h).

#include "gradwire/transport/ucx/ucx_connection.h"

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/contained.h"

namespace gradwire::transport {
namespace {

// Maximum time for a peer to read why it was refused, and to close its end.
constexpr absl::Duration kFarewellTime = absl::Seconds(1);

// The addresses that the handshake covers: those of the TCP connection with which UCX establishes the
// endpoint.
security::MessageChannel channel_of(ucp_ep_h endpoint, bool accepted) {
  security::MessageChannel channel{.accepted = accepted, .own_address = "", .peer_address = ""};
  ucp_ep_attr_t attributes = {};
  attributes.field_mask = UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR | UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR;
  if (ucp_ep_query(endpoint, &attributes) == UCS_OK) {
    channel.own_address = to_string(socket_address(attributes.local_sockaddr));
    channel.peer_address = to_string(socket_address(attributes.remote_sockaddr));
  }
  return channel;
}

}  // namespace

UcxConnection::UcxConnection(std::shared_ptr<UcxContext> context, std::string peer_address)
    : LoopConnection(context, std::move(peer_address)),
      context_(std::move(context)),
      sender_(*this, *context_, [this](absl::Status failure) { settle_later_in_loop(std::move(failure)); }),
      receiver_(*this, *context_,
                [this](absl::Status failure) { settle_later_in_loop(std::move(failure)); }) {}

absl::StatusOr<uint64_t> UcxConnection::send(Message message) {
  bool post = false;
  absl::StatusOr<uint64_t> ticket = sender_.send(std::move(message), post);
  if (post) {
    LoopConnection::post([this] {
      settle_in_loop();
      context_->activate_in_loop();
    });
  }
  return ticket;
}

security::PeerIdentity UcxConnection::peer() const {
  MutexLock lock(mutex_);
  return peer_;
}

void UcxConnection::connect_in_loop(std::vector<HostAddress> addresses,
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

void UcxConnection::found_in_loop(absl::StatusOr<std::vector<SocketAddress>> found, absl::Time deadline) {
  if (!found.ok()) {
    finish_in_loop(found.status());
    return;
  }
  candidates_ = *std::move(found);
  attempts_.emplace(candidates_.size(), deadline);
  begin_attempt_in_loop();
}

void UcxConnection::begin_attempt_in_loop() {
  const UcxAttempts::Attempt attempt = attempts_->begin(Clock::system().now());
  SocketAddress& address = candidates_[attempt.address];
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {address.get(), address.length};
  create_endpoint_in_loop(params, attempt.deadline);
}

// Removes everything of this attempt, since its late callbacks must not affect the next one.
void UcxConnection::end_attempt_in_loop() {
  const absl::Status failure = *std::exchange(failure_, std::nullopt);
  loop().cancel_in_loop(std::exchange(opening_timer_, 0));
  close_endpoint_in_loop();
  opening_.reset();
  receiver_.reset_in_loop();
  sender_.abandon_in_loop();
  const absl::Time now = Clock::system().now();
  const std::optional<absl::Time> again = attempts_->fail(std::exchange(turned_away_, false), now);
  if (!again.has_value()) {
    fail_in_loop(failure);
  } else if (*again <= now) {
    begin_attempt_in_loop();
  } else {
    opening_timer_ = schedule_in_loop(*again, [this] {
      opening_timer_ = 0;
      begin_attempt_in_loop();
    });
  }
}

void UcxConnection::adopt_in_loop(ucp_conn_request_h request, std::string host, Admission::Id place) {
  host_ = std::move(host);
  place_ = place;
  context_->connections.insert(shared_from_this());
  context_->arrivals.add_in_loop(place_, *this);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  create_endpoint_in_loop(params, Clock::system().now() + context_->introduction_timeout);
}

void UcxConnection::give_up_in_loop() {
  const std::shared_ptr<LoopConnection> self = shared_from_this();
  context_->arrivals.leave_in_loop(std::exchange(place_, 0));
  farewell_ = false;
  finish_in_loop(absl::UnavailableError("another process got its place"));
  // It may have been closed before, to wait until its peer had read why it was refused.
  close_endpoint_in_loop();
}

void UcxConnection::create_endpoint_in_loop(ucp_ep_params_t& params, absl::Time deadline) {
  opening_timer_ = schedule_in_loop(deadline, [this] {
    opening_timer_ = 0;
    settle_later_in_loop(absl::UnavailableError("the peer did not answer in time"));
    context_->activate_in_loop();
  });
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = context_->error_handler_in_loop();
  const ucs_status_t status = ucp_ep_create(context_->worker->get(), &params, &endpoint_);
  if (status == UCS_OK) {
    context_->add_endpoint_in_loop(endpoint_, *this);
    sender_.start_in_loop(endpoint_);
    const security::MessageChannel channel = channel_of(endpoint_, !attempts_.has_value());
    const std::string address = channel.peer_address.empty() ? peer_address() : channel.peer_address;
    opening_ = std::make_unique<UcxOpening>(UcxOpening::Options{
        .accepted = channel.accepted,
        .handshake =
            context_->options.credentials->for_messages(channel, {.purpose = context_->options.purpose,
                                                                  .own_name = context_->options.own_name,
                                                                  .peer_address = address}),
        .peer = address});
    react_in_loop(opening_->start());
  } else {
    endpoint_ = nullptr;
    settle_later_in_loop(absl::UnavailableError(ucs_status_string(status)));
  }
  context_->activate_in_loop();
}

void UcxConnection::react_in_loop(UcxOpening::Reaction reaction) {
  if (reaction.send.has_value()) {
    farewell_ = !reaction.failure.ok();
    sender_.post_opening_in_loop(*std::move(reaction.send));
  }
  if (!reaction.failure.ok()) {
    if (!attempts_.has_value())
      context_->arrivals.warn_in_loop(host_, peer_address(), reaction.failure.message());
    finish_in_loop(std::move(reaction.failure));
    return;
  }
  if (!reaction.done) return;
  {
    MutexLock lock(mutex_);
    peer_ = opening_->peer();
  }
  opening_.reset();
  opened_ = true;
  loop().cancel_in_loop(std::exchange(opening_timer_, 0));
  if (attempts_.has_value()) return;
  context_->arrivals.connect_in_loop(place_);
  listener_ = context_->accepted_in_loop(*this);
  if (listener_ != nullptr) {
    await_introduction_in_loop();
  } else {
    close(absl::PermissionDeniedError("the listening end refused the connection"), kFarewellTime);
  }
}

ucs_status_t UcxConnection::receive_in_loop(absl::string_view head, void* data, std::size_t data_bytes,
                                            bool rendezvous) {
  return at_boundary(
      "receiving a message of ucx",
      [&] {
        if (!opened_) {
          if (opening_ == nullptr || failure_.has_value()) return UCS_OK;
          if (opening_->arrive(head, data, data_bytes, rendezvous)) {
            context_->touch_in_loop(*this);
            return UCS_OK;
          }
        }
        return receiver_.receive_in_loop(head, data, data_bytes, rendezvous);
      },
      [&](absl::Status status) {
        settle_later_in_loop(std::move(status));
        return UCS_OK;
      });
}

void UcxConnection::endpoint_failed_in_loop(ucs_status_t status) {
  at_boundary(
      "the end of an endpoint of ucx", [&] { settle_end_in_loop(status); },
      [&](absl::Status error) { settle_later_in_loop(std::move(error)); });
}

void UcxConnection::settle_end_in_loop(ucs_status_t status) {
  endpoint_failed_ = true;
  // The last status is that of an endpoint that was closed while it was being connected.
  turned_away_ =
      status == UCS_ERR_REJECTED || status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_ENDPOINT_TIMEOUT;
  if (turned_away_ && !opened_) {
    settle_later_in_loop(absl::UnavailableError(
        "the peer closed the connection before the handshake had ended; read the log of that process"));
    return;
  }
  settle_later_in_loop(absl::UnavailableError(
      status == UCS_ERR_CONNECTION_RESET ? "the peer closed the connection" : ucs_status_string(status)));
}

void UcxConnection::settle_later_in_loop(absl::Status failure) {
  if (!failure.ok() && !failure_.has_value()) {
    failure_ = std::move(failure);
    // Messages that arrive after the failure are not kept.
    receiver_.stop_in_loop();
  }
  context_->touch_in_loop(*this);
}

void UcxConnection::settle_in_loop() {
  touched = false;
  const std::shared_ptr<LoopConnection> self = shared_from_this();
  // Only the outstanding operations of a closed connection are left.
  if (ended_) {
    retire_in_loop();
    return;
  }
  if (opening_ != nullptr) {
    const auto again = [this, self] {
      settle_in_loop();
      context_->activate_in_loop();
    };
    if (!attempts_.has_value() && !turn_.take(loop().turns_in_loop(), again)) return;
    const bool may_connect = attempts_.has_value() || context_->arrivals.may_connect_in_loop(place_);
    react_in_loop(may_connect
                      ? opening_->advance()
                      : opening_->refuse(absl::StrCat("too many connections from ", host_, ": the limit is ",
                                                      context_->options.limits.max_connections_per_address,
                                                      " (Limits::max_connections_per_address)")));
    if (ended_) return;
  }
  // Calls of the listener do not run code of the loop, so the state is still open or closing.
  if (opened_) receiver_.deliver_in_loop();
  if (failure_.has_value()) {
    // The messages that have arrived come first.
    if (receiver_.deferred_in_loop()) return;
    if (opened_ || !attempts_.has_value()) {
      fail_in_loop(*failure_);
    } else {
      end_attempt_in_loop();
    }
  } else if (opened_ && receiver_.peer_left()) {
    fail_in_loop(absl::UnavailableError("the peer closed the connection"));
  } else if (opened_) {
    sender_.post_queued_in_loop();
  }
}

void UcxConnection::release_in_loop(const absl::Status& reason) {
  ended_ = true;
  if (search_ != nullptr) search_->cancel_in_loop();
  opening_.reset();
  sender_.end(reason);
  loop().cancel_in_loop(std::exchange(opening_timer_, 0));
  receiver_.reset_in_loop();
  receiver_.stop_in_loop();
  context_->retiring.insert(keep(this));
  const bool is_used = farewell_ || sender_.outstanding() + receiver_.outstanding() > 0;
  if (is_used && endpoint_ != nullptr && !endpoint_failed_) {
    const absl::Duration time = farewell_ ? kFarewellTime : context_->options.linger_time;
    linger_timer_ = schedule_in_loop(Clock::system().now() + time, [this] {
      linger_timer_ = 0;
      close_endpoint_in_loop();
    });
  }
  retire_in_loop();
  context_->activate_in_loop();
}

// The peer may be reading memory of this end by rendezvous: until it has finished, the memory and the
// endpoint must stay.
void UcxConnection::retire_in_loop() {
  const auto is_used = [this] { return sender_.outstanding() + receiver_.outstanding() > 0; };
  // After a failure UCX completes the operations, so nothing is gained by waiting.
  if (endpoint_ != nullptr && ((!is_used() && !farewell_) || endpoint_failed_)) close_endpoint_in_loop();
  if (endpoint_ != nullptr || is_used()) return;
  loop().cancel_in_loop(std::exchange(linger_timer_, 0));
  if (place_ != 0) context_->arrivals.leave_in_loop(std::exchange(place_, 0));
  // This may drop the last reference except the caller's.
  context_->retiring.erase(keep(this));
}

void UcxConnection::close_endpoint_in_loop() {
  if (endpoint_ == nullptr) return;
  sender_.stop_in_loop();
  // UCX completes the outstanding operations while it closes the endpoint, or soon after.
  context_->close_endpoint_in_loop(std::exchange(endpoint_, nullptr));
  endpoint_failed_ = false;
  context_->touch_in_loop(*this);
}

void UcxConnection::worker_ended_in_loop() {
  loop().cancel_in_loop(std::exchange(linger_timer_, 0));
  if (place_ != 0) context_->arrivals.leave_in_loop(std::exchange(place_, 0));
  endpoint_ = nullptr;
  sender_.worker_ended_in_loop();
  receiver_.worker_ended_in_loop();
}

}  // namespace gradwire::transport
