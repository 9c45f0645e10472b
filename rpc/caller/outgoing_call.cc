#include "gradwire/rpc/caller/outgoing_call.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

// The number of the calling thread, never 0, by which its ordered calls are ordered.
uint64_t order_key_of_this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t key = next.fetch_add(1);
  return key;
}

const Worker& nobody() {
  static const Worker worker;
  return worker;
}

}  // namespace

OutgoingCall::OutgoingCall(Caller& caller, const Destination& destination, std::string callee)
    : caller_(caller),
      to_(&nobody()),
      request_(*envelope_->mutable_request()),
      references_(caller.rrefs(), /*is_answer=*/false),
      encoder_(*request_.mutable_arguments(), &references_) {
  call_->callee = std::move(callee);
  absl::StatusOr<std::shared_ptr<Peer>> peer = caller.find(destination);
  if (peer.ok()) {
    call_->peer = *std::move(peer);
    to_ = &call_->peer->worker;
    call_->incarnation = to_->incarnation;
    references_.set_receiver(*to_);
  } else {
    status_ = peer.status();
  }
  if (destination.is_ordered()) request_.set_order_key(order_key_of_this_thread());
  call_->started = Clock::system().now();
  call_->leaves = call_->started;
  call_->timeout = destination.timeout().value_or(caller.runtime().options.rpc_timeout);
  call_->deadline = caller.deadline(destination.timeout(), call_->started);
  const absl::Duration left = call_->deadline - call_->started;
  if (left <= absl::ZeroDuration()) {
    set_status(absl::DeadlineExceededError(absl::StrCat(
        "no time is left for the call",
        left < call_->timeout ? ": the call that this handler serves, and that ends it, is late"
                              : absl::StrCat(", whose timeout is ", absl::FormatDuration(call_->timeout),
                                             " (absl::InfiniteDuration() is no limit)"))));
  }
  if (left < call_->timeout) call_->timeout = absl::Ceil(left, absl::Milliseconds(1));
}

OutgoingCall::~OutgoingCall() {
  if (!sent_) caller_.rrefs().undo(request().arguments(), *to_);
}

bool OutgoingCall::is_repeatable() const {
  const AgentRuntime& runtime = caller_.runtime();
  return idempotent_ && runtime.options.retry.max_attempts > 1 && !request_.has_result_rref() &&
         request_.order_key() == 0 && request_.arguments().references_size() == 0 &&
         !request_.arguments().has_graph() && *to_ != runtime.self;
}

uint64_t OutgoingCall::send(Completion done) {
  sent_ = true;
  AgentRuntime& runtime = caller_.runtime();
  proto::Payload& payload = *request_.mutable_arguments();
  std::vector<transport::Buffer> buffers;
  std::unique_ptr<TensorSet> tensors = encoder_.take_tensors();
  // 1. A call in an autograd context leaves its node in the graph.
  if (status_.ok()) set_status(runtime.accepts_calls());
  if (status_.ok() && runtime.graph_hook != nullptr) {
    set_status(runtime.graph_hook->outgoing_request(*to_, tensors.get(), payload));
  }
  const bool repeatable = status_.ok() && is_repeatable();
  // 2. Encode the tensors. The caller may change its own before a repetition leaves.
  if (status_.ok() && tensors != nullptr) {
    const TensorSharing sharing = repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow;
    set_status(tensor_backend()->encode(*tensors, sharing, payload, buffers));
    // Tensors that were given away belong to the buffers alone now.
    tensors = nullptr;
  }
  // 3. Take a place in the window of the worker.
  if (status_.ok()) {
    uint64_t bytes = payload.ByteSizeLong();
    for (const transport::Buffer& buffer : buffers) bytes += buffer.size();
    absl::StatusOr<FlowCredit> credit = caller_.enter_window(*call_, bytes);
    set_status(credit.status());
    if (credit.ok()) call_->credit = *std::move(credit);
  }
  if (!status_.ok()) {
    caller_.rrefs().undo(payload, *to_);
    if (payload.has_graph()) runtime.graph_hook->outgoing_failed(*to_, payload.graph());
    done(with_context(status_, absl::StrCat("calling \"", call_->callee, "\"")));
    return 0;
  }
  // 4. From here on the call belongs to the Caller.
  call_->references = references_.take();
  call_->done = std::move(done);
  const uint64_t id = caller_.next_id();
  if (repeatable) {
    caller_.send_repeatable(id, *envelope_, std::move(buffers), std::move(call_));
  } else {
    caller_.send(id, *envelope_, std::move(buffers), borrow_, std::move(call_));
  }
  return id;
}

}  // namespace gradwire::rpc
