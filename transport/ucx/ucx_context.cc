#include "gradwire/transport/ucx/ucx_context.h"

#include <netinet/in.h>

#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/transport/ucx/ucx_connection.h"
#include "gradwire/transport/ucx/ucx_listener.h"

namespace gradwire::transport {
namespace {

// Maximum time for UCX to close endpoints after everything else has ended.
constexpr absl::Duration kEndTime = absl::Seconds(3);

UcxOptions completed(UcxOptions options) {
  if (options.credentials == nullptr) options.credentials = security::no_credentials();
  return options;
}

}  // namespace

SocketAddress socket_address(const sockaddr_storage& storage) {
  return {storage,
          static_cast<socklen_t>(storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))};
}

UcxContext::UcxContext(UcxOptions given, std::shared_ptr<EventLoop> given_loop)
    : LoopContext(given.pool, std::move(given_loop)),
      options(completed(std::move(given))),
      lookups(options.look_up),
      arrivals(options.limits) {
  introduction_timeout = options.introduction_timeout;
}

UcxContext::~UcxContext() = default;

absl::Status UcxContext::start() {
  GRADWIRE_ASSIGN_OR_RETURN(worker, UcxWorker::create(options.methods));
  ucp_am_handler_param_t handler = {};
  handler.field_mask =
      UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = UcxSender::kActiveMessageId;
  handler.cb = &UcxContext::on_active_message;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker->get(), &handler);
  return status == UCS_OK ? absl::OkStatus() : ucx_error("cannot register UCX's message handler", status);
}

void UcxContext::start_in_loop() {
  absl::StatusOr<uint64_t> id = loop->add_in_loop(worker->descriptor(), keep<EventHandler>());
  if (id.ok()) {
    handler_id_ = *id;
  } else {
    log(LogLevel::kError, "the ucx transport cannot wait for UCX's descriptor: ", id.status().message());
  }
  activate_in_loop();
}

absl::StatusOr<int> UcxContext::listen_in_loop(Transport::AcceptHandler on_accept) {
  if (worker == nullptr) return absl::UnavailableError("the ucx transport has shut down");
  GRADWIRE_ASSIGN_OR_RETURN(listener_, UcxListener::create(*this, std::move(on_accept)));
  activate_in_loop();
  return listener_->port();
}

void UcxContext::shut_down_in_loop() {
  listener_ = nullptr;
  activate_in_loop();
  LoopContext::shut_down_in_loop();
}

void UcxContext::activate_in_loop() {
  if (worker != nullptr) loop->activate(keep<Pollable>());
}

void UcxContext::touch_in_loop(UcxConnection& connection) {
  // The list owns the connection, which may close before it settles.
  if (!std::exchange(connection.touched, true)) touched_.push_back(connection.keep(&connection));
}

std::shared_ptr<ConnectionListener> UcxContext::accepted_in_loop(UcxConnection& connection) {
  // While the transport shuts down there is no listener.
  return listener_ == nullptr ? nullptr : listener_->accepted_in_loop(connection.keep(&connection));
}

void UcxContext::add_endpoint_in_loop(ucp_ep_h endpoint, UcxConnection& connection) {
  by_endpoint_.emplace(endpoint, &connection);
}

void UcxContext::close_endpoint_in_loop(ucp_ep_h endpoint) {
  by_endpoint_.erase(endpoint);
  if (worker == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  // Without waiting for the peer, which may be gone: the protocol has its own goodbye. Outstanding
  // operations end with an error.
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = [](void* request, ucs_status_t, void* context) {
    ucp_request_free(request);
    --static_cast<UcxContext*>(context)->closing_endpoints_;
  };
  param.user_data = this;
  if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(endpoint, &param))) ++closing_endpoints_;
  activate_in_loop();
}

bool UcxContext::has_work_in_loop() const {
  return !touched_.empty() || !released_.empty() || (listener_ != nullptr && listener_->has_requests());
}

// UCX has no call that only says whether there is work. So this makes progress, which may call callbacks;
// these only record and touch.
bool UcxContext::has_data_in_loop() {
  if (worker == nullptr || armed_) return false;
  // Deferred tasks of the loop deliver the messages that wait, and then activate this object.
  if (waiting_messages >= kMostWaiting) return has_work_in_loop();
  // UCX does not arm its descriptor while events are pending. Poll again at once, because the descriptor
  // will not report them.
  if (std::exchange(refused_arming_, false)) return true;
  return worker->progress() || has_work_in_loop();
}

bool UcxContext::poll_in_loop() {
  // Repeat until there is no progress: a message that was received by rendezvous may be delivered only after
  // UCX has also reported whether its sender, whose memory was read, still existed. But the time of the round
  // may be over before.
  Turns& turns = loop->turns_in_loop();
  while (waiting_messages == 0 && arrived_in_round_ < kMostWaiting && !turns.spent() && worker->progress()) {
  }
  arrived_in_round_ = 0;
  settle_in_loop();
  end_if_done_in_loop();
  return true;
}

void UcxContext::settle_in_loop() {
  // In this order: release buffers, let the connections settle, then accept. All of them may run code of
  // users, which the callbacks of UCX must not do.
  released_.clear();
  // A connection that settles may touch others or itself; these settle in the next round.
  const std::vector<std::shared_ptr<UcxConnection>> touched = std::exchange(touched_, {});
  for (const std::shared_ptr<UcxConnection>& connection : touched) {
    connection->run_in_loop([&] { connection->settle_in_loop(); });
  }
  if (listener_ != nullptr) listener_->accept_in_loop();
}

// While other work is left, UCX has perhaps no event that it would report.
void UcxContext::arm_in_loop() {
  if (worker == nullptr) return;
  armed_ = !has_work_in_loop() && worker->arm();
  refused_arming_ = !armed_;
}

void UcxContext::on_events_in_loop(uint32_t) { activate_in_loop(); }

// A step of the context itself has failed: those of connections are contained (LoopConnection::run_in_loop).
void UcxContext::failed_in_loop(const absl::Status& error) {
  log(LogLevel::kError, "the ucx transport goes on after an error: ", error.ToString());
}

ucs_status_t UcxContext::on_active_message(void* context, const void* head, std::size_t head_bytes,
                                           void* data, std::size_t data_bytes,
                                           const ucp_am_recv_param_t* param) {
  auto* const self = static_cast<UcxContext*>(context);
  ++self->arrived_in_round_;
  // Without the sender's endpoint the message belongs to no connection. UCS_OK makes UCX release the data.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  const auto found = self->by_endpoint_.find(param->reply_ep);
  // The endpoint was closed meanwhile.
  if (found == self->by_endpoint_.end()) return UCS_OK;
  const absl::string_view head_view(static_cast<const char*>(head), head_bytes);
  return found->second->receive_in_loop(head_view, data, data_bytes,
                                        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

void UcxContext::on_endpoint_error(void* context, ucp_ep_h endpoint, ucs_status_t status) {
  auto* const self = static_cast<UcxContext*>(context);
  const auto found = self->by_endpoint_.find(endpoint);
  if (found != self->by_endpoint_.end()) found->second->endpoint_failed_in_loop(status);
}

void UcxContext::end_if_done_in_loop() {
  if (!shutting_down || ended || !connections.empty()) return;
  // UCX may still call callbacks that refer to retiring connections, so the worker is destroyed after them,
  // or after a limited time.
  if (retiring.empty() && closing_endpoints_ == 0) {
    end_in_loop();
    return;
  }
  if (end_timer_ != 0) return;
  end_timer_ = loop->schedule_in_loop(
      Clock::system().now() + options.linger_time + kEndTime, [this, self = shared_from_this()] {
        log(LogLevel::kWarning, "UCX did not close ", retiring.size(), " connections in time");
        end_in_loop();
      });
}

void UcxContext::end_in_loop() {
  const std::shared_ptr<LoopContext> self = shared_from_this();
  loop->cancel_in_loop(end_timer_);
  if (handler_id_ != 0) loop->remove_in_loop(worker->descriptor(), handler_id_);
  loop->forget_in_loop(*this);
  // Destroy the worker first: the memory that UCX uses must outlive it.
  worker = nullptr;
  const auto kept = std::exchange(retiring, {});
  for (const auto& connection : kept) connection->worker_ended_in_loop();
  touched_.clear();
  released_.clear();
  LoopContext::end_if_done_in_loop();
}

}  // namespace gradwire::transport
