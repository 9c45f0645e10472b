// UCX's callbacks report events at any time during progress. They only record them and touch the
// connection. settle_in_loop() then does, in this order: deliver complete messages, give up or close after
// a failure, close after the peer's goodbye, post queued messages.

#include "gradwire/transport/ucx/ucx_connection.h"

#include "gradwire/base/clock.h"

namespace gradwire::transport {

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
    loop().post([this, self = shared_from_this()] {
      settle_in_loop();
      context_->activate_in_loop();
    });
  }
  return ticket;
}

void UcxConnection::connect_in_loop(std::vector<SocketAddress> candidates,
                                    std::shared_ptr<ConnectionListener> listener, absl::Time deadline) {
  listener_ = std::move(listener);
  candidates_ = std::move(candidates);
  connect_deadline_ = deadline;
  if (begin_in_loop()) try_next_candidate_in_loop();
}

void UcxConnection::try_next_candidate_in_loop() {
  SocketAddress& candidate = candidates_[next_candidate_++];
  // The remaining candidates share the remaining time equally.
  const absl::Time now = Clock::system().now();
  const auto left = static_cast<int64_t>(candidates_.size() - next_candidate_ + 1);
  await_hello_in_loop(now + (connect_deadline_ - now) / left);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {candidate.get(), candidate.length};
  create_endpoint_in_loop(params);
}

void UcxConnection::adopt_in_loop(ucp_conn_request_h request, std::shared_ptr<ConnectionListener> listener) {
  listener_ = std::move(listener);
  context_->connections.insert(shared_from_this());
  await_introduction_in_loop();
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  create_endpoint_in_loop(params);
}

void UcxConnection::await_hello_in_loop(absl::Time deadline) {
  hello_timer_ = loop().schedule_in_loop(deadline, [this, self = shared_from_this()] {
    settle_later_in_loop(absl::UnavailableError("the peer did not answer in time"));
    context_->activate_in_loop();
  });
}

void UcxConnection::create_endpoint_in_loop(ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = context_->error_handler_in_loop();
  const ucs_status_t status = ucp_ep_create(context_->worker->get(), &params, &endpoint_);
  if (status == UCS_OK) {
    context_->add_endpoint_in_loop(endpoint_, *this);
    sender_.start_in_loop(endpoint_);
  } else {
    endpoint_ = nullptr;
    settle_later_in_loop(absl::UnavailableError(ucs_status_string(status)));
  }
  context_->activate_in_loop();
}

void UcxConnection::endpoint_failed_in_loop(ucs_status_t status) {
  endpoint_failed_ = true;
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
  touched_ = false;
  const std::shared_ptr<LoopConnection> self = shared_from_this();
  // The connection is closed; only its outstanding operations are left.
  if (listener_ == nullptr) {
    retire_in_loop();
    return;
  }
  receiver_.deliver_in_loop();
  const bool connected = receiver_.greeted();
  if (connected) loop().cancel_in_loop(std::exchange(hello_timer_, 0));
  // Calls of the listener do not run code of the loop, so the state is still open or closing.
  if (failure_.has_value()) {
    if (connected || next_candidate_ == candidates_.size()) {
      fail_in_loop(*failure_);
      return;
    }
    // Try the next address. First remove everything of this attempt, since its late callbacks must not affect
    // the next one.
    loop().cancel_in_loop(hello_timer_);
    close_endpoint_in_loop();
    receiver_.reset_in_loop();
    sender_.abandon_in_loop();
    failure_.reset();
    try_next_candidate_in_loop();
  } else if (receiver_.peer_left()) {
    fail_in_loop(absl::UnavailableError("the peer closed the connection"));
  } else if (connected) {
    sender_.post_queued_in_loop();
  }
}

void UcxConnection::release_in_loop(const absl::Status& reason) {
  sender_.end(reason);
  loop().cancel_in_loop(hello_timer_);
  receiver_.reset_in_loop();
  receiver_.stop_in_loop();
  context_->retiring.insert(keep(this));
  if (sender_.outstanding() + receiver_.outstanding() > 0 && endpoint_ != nullptr && !endpoint_failed_) {
    linger_timer_ = loop().schedule_in_loop(Clock::system().now() + context_->options.linger_time,
                                            [this, self = shared_from_this()] { close_endpoint_in_loop(); });
  }
  retire_in_loop();
  context_->activate_in_loop();
}

// The peer may be reading memory of this end by rendezvous: until it has finished, the memory and the
// endpoint must stay.
void UcxConnection::retire_in_loop() {
  const auto is_used = [this] { return sender_.outstanding() + receiver_.outstanding() > 0; };
  // After a failure UCX completes the operations, so nothing is gained by waiting.
  if (endpoint_ != nullptr && (!is_used() || endpoint_failed_)) close_endpoint_in_loop();
  if (endpoint_ != nullptr || is_used()) return;
  loop().cancel_in_loop(linger_timer_);
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
  loop().cancel_in_loop(linger_timer_);
  endpoint_ = nullptr;
  sender_.worker_ended_in_loop();
  receiver_.worker_ended_in_loop();
}

}  // namespace gradwire::transport
