#include "gradwire/rpc/caller/outgoing_call.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/block_cache.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/message_references.h"
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

struct OutgoingCall::Parts {
  explicit Parts(RRefService& rrefs) : references(rrefs, /*is_answer=*/false) {}
  // Parts are as large as an envelope: a thread keeps those that it frees.
  static void* operator new(std::size_t) { return BlockCache<sizeof(Parts)>::take(); }
  static void operator delete(void* parts) { BlockCache<sizeof(Parts)>::give(parts); }

  EnvelopeBox envelope;
  MessageReferences references;
  // Passed on until the call completes; nullptr once the call was sent.
  PendingCalls::Taken call = std::make_unique<PendingCall>();
};

OutgoingCall::OutgoingCall(Caller& caller, const Destination& destination, std::string callee)
    : caller_(caller),
      parts_(std::make_unique<Parts>(caller.rrefs())),
      to_(&nobody()),
      request_(*parts_->envelope->mutable_request()),
      encoder_(*request_.mutable_arguments(), &parts_->references) {
  const PendingCalls::Taken& call = parts_->call;
  call->callee = std::move(callee);
  absl::StatusOr<std::shared_ptr<Peer>> peer = caller.find(destination);
  if (peer.ok()) {
    call->peer = *std::move(peer);
    to_ = &call->peer->worker;
    call->incarnation = to_->incarnation;
    parts_->references.set_receiver(*to_);
  } else {
    status_ = peer.status();
  }
  if (destination.is_ordered()) request_.set_order_key(order_key_of_this_thread());
  call->started = Clock::system().now();
  call->leaves = call->started;
  call->timeout = destination.timeout().value_or(caller.runtime().options.rpc_timeout);
  call->deadline = caller.deadline(destination.timeout(), call->started);
  const absl::Duration left = call->deadline - call->started;
  if (left <= absl::ZeroDuration()) {
    set_status(absl::DeadlineExceededError(absl::StrCat(
        "no time is left for the call",
        left < call->timeout ? ": the call that this handler serves, and that ends it, is late"
                             : absl::StrCat(", whose timeout is ", absl::FormatDuration(call->timeout),
                                            " (absl::InfiniteDuration() is no limit)"))));
  }
  if (left < call->timeout) call->timeout = absl::Ceil(left, absl::Milliseconds(1));
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
  PendingCalls::Taken& call = parts_->call;
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
    absl::StatusOr<FlowCredit> credit = caller_.enter_window(*call, bytes);
    set_status(credit.status());
    if (credit.ok()) call->credit = *std::move(credit);
  }
  if (!status_.ok()) {
    caller_.rrefs().undo(payload, *to_);
    if (payload.has_graph()) runtime.graph_hook->outgoing_failed(*to_, payload.graph());
    done(with_context(status_, absl::StrCat("calling \"", call->callee, "\"")));
    return 0;
  }
  // 4. From here on the call belongs to the Caller.
  call->references = parts_->references.take();
  call->done = std::move(done);
  const uint64_t id = caller_.next_id();
  if (repeatable) {
    caller_.send_repeatable(id, *parts_->envelope, std::move(buffers), std::move(call));
  } else {
    caller_.send(id, *parts_->envelope, std::move(buffers), borrow_, std::move(call));
  }
  return id;
}

}  // namespace gradwire::rpc
