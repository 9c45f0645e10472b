// The part of UcxConnection that brings it about.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/transport/ucx/ucx_connection.h"

namespace gradwire::transport {
namespace {

// For whoever has connected to say hello.
constexpr absl::Duration kHelloTime = absl::Seconds(10);

}  // namespace

void UcxConnection::connect_in_loop(std::vector<SocketAddress> candidates,
                                    std::shared_ptr<ConnectionListener> listener, absl::Time deadline) {
  listener_ = std::move(listener);
  candidates_ = std::move(candidates);
  connect_deadline_ = deadline;
  context_->connections.insert(shared_from_this());
  if (context_->shutting_down) {
    shut_down_in_loop();
    return;
  }
  try_next_candidate_in_loop();
}

void UcxConnection::try_next_candidate_in_loop() {
  SocketAddress& candidate = candidates_[next_candidate_++];
  // Those behind it have their share of the time.
  const absl::Time now = Clock::system().now();
  const auto left = static_cast<int64_t>(candidates_.size() - next_candidate_ + 1);
  candidate_timer_ =
      context_->loop->schedule_in_loop(now + (connect_deadline_ - now) / left, [self = shared_from_this()] {
        self->fail_in_loop(self->unavailable("the other end did not answer in time"));
        self->context_->heat_in_loop();
      });
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {candidate.get(), candidate.length};
  if (absl::Status created = create_endpoint_in_loop(params); !created.ok()) fail_in_loop(std::move(created));
  context_->heat_in_loop();
}

void UcxConnection::candidate_failed_in_loop(std::string cause) {
  context_->loop->cancel_in_loop(candidate_timer_);
  close_endpoint_in_loop();
  drop_incoming_in_loop();
  for (std::unique_ptr<UcxOutgoing>& message : posted_) abandoned_.push_back(std::move(message));
  posted_.clear();
  failure_.reset();
  try_next_candidate_in_loop();
}

void UcxConnection::adopt_in_loop(ucp_conn_request_h request, std::shared_ptr<ConnectionListener> listener) {
  listener_ = std::move(listener);
  context_->connections.insert(shared_from_this());
  candidate_timer_ =
      context_->loop->schedule_in_loop(Clock::system().now() + kHelloTime, [self = shared_from_this()] {
        self->fail_in_loop(self->unavailable("the other end did not say hello in time"));
        self->context_->heat_in_loop();
      });
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  if (absl::Status created = create_endpoint_in_loop(params); !created.ok()) fail_in_loop(std::move(created));
  context_->heat_in_loop();
}

absl::Status UcxConnection::create_endpoint_in_loop(ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = context_->error_handler_in_loop();
  const ucs_status_t status = ucp_ep_create(context_->worker->get(), &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return unavailable(ucs_status_string(status));
  }
  context_->add_endpoint_in_loop(endpoint_, *this);
  post_control_in_loop(UcxHead::Kind::kHello, 0);
  return absl::OkStatus();
}

}  // namespace gradwire::transport
