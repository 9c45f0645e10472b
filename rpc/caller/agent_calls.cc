#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/caller/flow_wait.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/link/link.h"

// How calls leave an agent and what becomes of their answers.
namespace gradwire::rpc {
namespace {

// A number for the calling thread, never 0: what ordered calls are ordered by.
uint64_t order_key_of_this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t key = next.fetch_add(1);
  return key;
}

}  // namespace

OutgoingCall::OutgoingCall(Agent& agent, const Destination& destination, std::string callee)
    : agent_(agent),
      request_(*envelope_->mutable_request()),
      references_(agent.rrefs(), /*is_answer=*/false),
      encoder_(*request_.mutable_arguments(), &references_),
      callee_(std::move(callee)) {
  absl::StatusOr<std::shared_ptr<Peer>> peer = agent.impl_->find(destination);
  if (peer.ok()) {
    peer_ = *std::move(peer);
    to_ = &peer_->worker;
    references_.set_receiver(*to_);
  } else {
    status_ = peer.status();
  }
  if (destination.is_ordered()) request_.set_order_key(order_key_of_this_thread());
  started_ = Clock::system().now();
  const absl::Duration said = destination.timeout().value_or(agent.impl_->options.rpc_timeout);
  deadline_ = agent.call_deadline(destination.timeout());
  // For the message: as the caller said it, unless the call that he serves leaves him less.
  const absl::Duration left = deadline_ - started_;
  timeout_ =
      absl::AbsDuration(said - left) < absl::Milliseconds(1) ? said : std::max(absl::ZeroDuration(), left);
}

absl::Time Agent::call_deadline(const std::optional<absl::Duration>& timeout) const {
  const absl::Duration allowed = timeout.value_or(impl_->options.rpc_timeout);
  absl::Time deadline = allowed <= absl::ZeroDuration() || allowed == absl::InfiniteDuration()
                            ? absl::InfiniteFuture()
                            : Clock::system().now() + allowed;
  // A call made by a handler ends no later than the call that the handler serves.
  if (auto serving = CallContext::current()) deadline = std::min(deadline, serving->deadline());
  return deadline;
}

OutgoingCall::~OutgoingCall() {
  if (!sent_) agent_.rrefs().undo(request().arguments(), *to_);
}

uint64_t Agent::send_call(OutgoingCall& call, Completion done) {
  call.sent_ = true;
  proto::Payload& payload = *call.request().mutable_arguments();
  std::vector<transport::Buffer> buffers;
  std::unique_ptr<TensorSet> tensors = call.encoder_.take_tensors();
  if (call.status_.ok()) call.set_status(impl_->accepts_calls());
  if (call.status_.ok() && impl_->graph_hook != nullptr) {
    call.set_status(impl_->graph_hook->outgoing_request(*call.to_, tensors.get(), payload));
  }
  const bool repeatable = call.status_.ok() && call.idempotent_ && impl_->options.retry.max_attempts > 1 &&
                          !call.request_.has_result_rref() && call.request_.order_key() == 0 &&
                          payload.references_size() == 0 && !payload.has_graph() && *call.to_ != self();
  if (call.status_.ok() && tensors != nullptr) {
    // The caller may change his tensors before a repetition leaves.
    const TensorSharing sharing = repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow;
    call.set_status(tensor_backend()->encode(*tensors, sharing, payload, buffers));
    // What was given away belongs to the buffers alone now.
    tensors = nullptr;
  }
  FlowCredit credit;
  absl::Time leaves = call.started_;
  if (call.status_.ok()) {
    uint64_t bytes = payload.ByteSizeLong();
    for (const transport::Buffer& buffer : buffers) bytes += buffer.size();
    credit = call.peer_->flow.try_enter(bytes, impl_->flow_bounds);
    if (!credit) {
      absl::StatusOr<FlowCredit> waited =
          enter_full_window(call.peer_->flow, impl_->options.flow,
                            {call.callee_, call.to_->name, bytes, call.deadline_, call.timeout_},
                            impl_->executor, *impl_->timers);
      call.set_status(waited.status());
      if (waited.ok()) credit = *std::move(waited);
      leaves = Clock::system().now();
    }
  }
  if (!call.status_.ok()) {
    impl_->rrefs->undo(payload, *call.to_);
    if (payload.has_graph()) impl_->graph_hook->outgoing_failed(*call.to_, payload.graph());
    done(with_context(call.status_, absl::StrCat("calling \"", call.callee_, "\"")));
    return 0;
  }
  auto pending = std::make_unique<PendingCall>();
  pending->peer = std::move(call.peer_);
  pending->incarnation = call.to_->incarnation;
  pending->callee = std::move(call.callee_);
  pending->credit = std::move(credit);
  pending->started = call.started_;
  pending->leaves = leaves;
  pending->deadline = call.deadline_;
  pending->timeout = call.timeout_;
  pending->references = call.references_.take();
  pending->done = std::move(done);
  const uint64_t id = impl_->pending.next_id();
  if (repeatable) {
    auto request = std::make_shared<RepeatableRequest>();
    request->id = impl_->request_ids.begin(pending->incarnation);
    call.request_.set_request_id(request->id);
    request->envelope = *call.envelope_;
    request->buffers = std::move(buffers);
    pending->repeatable = std::move(request);
    impl_->send_repeatable(id, std::move(pending));
  } else {
    impl_->send(id, *call.envelope_, std::move(buffers), call.borrow_, std::move(pending));
  }
  return id;
}

absl::StatusOr<transport::Buffer> Agent::allocate_for(const Destination& to, std::size_t size) {
  GRADWIRE_RETURN_IF_ERROR(impl_->accepts_calls());
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->find(to));
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, impl_->peers->link_to(peer));
  return link->allocate(size);
}

void Agent::cancel_call(uint64_t id, absl::Status reason) { impl_->cancel(id, std::move(reason)); }

namespace {

// One service call with its repetitions.
struct ServiceAttempt : std::enable_shared_from_this<ServiceAttempt> {
  static constexpr absl::Duration kRepeatAfter = absl::Milliseconds(20);

  std::weak_ptr<Agent> agent;
  AgentImpl* impl = nullptr;  // Valid while `agent` is.
  Worker to;
  std::string callee;
  proto::Envelope envelope;
  std::vector<transport::Buffer> buffers;
  Agent::ServiceOptions options;
  Promise<ServiceReply> promise;
  std::atomic<uint64_t> call_id{0};

  explicit ServiceAttempt(const std::shared_ptr<Executor>& executor) : promise(executor) {}

  void send() {
    if (promise.future().done()) return;  // Cancelled between two attempts.
    std::shared_ptr<Agent> alive = agent.lock();
    if (alive == nullptr) {
      promise.set_error(absl::FailedPreconditionError("the agent is gone"));
      return;
    }
    auto call = std::make_unique<PendingCall>();
    absl::StatusOr<std::shared_ptr<Peer>> peer = impl->peers->find(to);
    if (!peer.ok()) {
      promise.set_error(with_worker(peer.status(), to.name));
      return;
    }
    call->peer = *std::move(peer);
    call->incarnation = to.incarnation;
    call->callee = callee;
    call->started = Clock::system().now();
    call->leaves = call->started;
    call->deadline = options.deadline;
    call->timeout = options.deadline - call->started;
    call->answered = [self = shared_from_this()](absl::StatusOr<Answer> answer) {
      self->answered(std::move(answer));
    };
    // A copy: it may have to leave again, with another call id, before this one has. The buffers are owned.
    proto::Envelope copy = envelope;
    const uint64_t id = impl->pending.next_id();
    call_id = id;
    impl->send(id, copy, buffers, /*borrow=*/false, std::move(call));
  }

  void answered(absl::StatusOr<Answer> answer) {
    std::shared_ptr<Agent> alive = agent.lock();
    const absl::Time next = Clock::system().now() + kRepeatAfter;
    // A worker that cannot be connected to answers at once, but the time is bounded all the same.
    if (alive != nullptr && options.repeat && absl::IsUnavailable(answer.status()) &&
        !promise.future().done() && next < options.deadline && alive->worker_status(to).ok() &&
        impl->accepts_calls().ok()) {
      // Connecting may take its time, and others need the timers' thread.
      impl->timers->schedule(next, [self = shared_from_this(), executor = impl->executor] {
        Executor::Task task = [self] { self->send(); };
        if (!executor->post_clean(task)) task();
      });
      return;
    }
    if (!answer.ok()) {
      promise.set_error(answer.status());
      return;
    }
    ServiceReply reply;
    reply.body = answer->response().body();
    const proto::Payload& payload = answer->response().result();
    if (payload.tensors_size() > 0 && tensor_backend() != nullptr) {
      auto tensors = tensor_backend()->decode(payload, std::move(answer->buffers));
      if (!tensors.ok()) {
        promise.set_error(tensors.status());
        return;
      }
      reply.tensors = *std::move(tensors);
    }
    promise.set_value(std::move(reply));
  }
};

}  // namespace

Future<ServiceReply> Agent::call_service(const Worker& to, uint32_t service, std::string body,
                                         std::unique_ptr<TensorSet> tensors, const ServiceOptions& options) {
  auto attempt = std::make_shared<ServiceAttempt>(impl_->executor);
  attempt->agent = weak_from_this();
  attempt->impl = impl_.get();
  attempt->to = to;
  attempt->callee = absl::StrCat("service ", service);
  attempt->options = options;
  proto::Request& request = *attempt->envelope.mutable_request();
  request.mutable_service()->set_number(service);
  request.mutable_service()->set_body(std::move(body));
  Future<ServiceReply> future = attempt->promise.future();
  if (tensors != nullptr) {
    absl::Status encoded = tensor_backend()->encode(*tensors, TensorSharing::kCapture,
                                                    *request.mutable_arguments(), attempt->buffers);
    if (!encoded.ok()) {
      attempt->promise.set_error(encoded);
      return future;
    }
  }
  attempt->promise.on_cancel([weak = std::weak_ptr<ServiceAttempt>(attempt)] {
    std::shared_ptr<ServiceAttempt> self = weak.lock();
    std::shared_ptr<Agent> alive = self == nullptr ? nullptr : self->agent.lock();
    if (alive != nullptr) alive->cancel_call(self->call_id, absl::CancelledError("cancelled by the caller"));
  });
  attempt->send();
  return future;
}

}  // namespace gradwire::rpc
