#include "gradwire/rpc/caller/outgoing_call.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/block_cache.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/caller/answer_by.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/caller/flow_wait.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/message_references.h"
#include "gradwire/rpc/rref/service.h"

// The first half of a call: from the arguments to a complete request. The second half, from sending to the
// answer, is Caller.
namespace gradwire::rpc {
namespace {

// The order key of the calling thread, which is never 0. Ordered calls with the same key start in order.
uint64_t order_key_of_this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t key = next.fetch_add(1);
  return key;
}

// Returns a credit for the call in the flow window of its peer. Waits if the window is full and the options
// say so.
absl::StatusOr<FlowCredit> enter_window(PendingCall& call, uint64_t bytes, AgentRuntime& runtime) {
  const FlowOptions& flow = runtime.options.flow;
  FlowCredit credit = call.peer->flow.try_enter(bytes, FlowWindow::Bounds(flow));
  if (credit) return credit;
  absl::StatusOr<FlowCredit> waited = enter_full_window(
      call.peer->flow, flow, {call.callee, call.peer->worker.name, bytes, call.deadline, call.timeout},
      runtime.executor, *runtime.timers);
  call.sent_at = Clock::system().now();
  // The time of the wait is part of the timeout, so the callee must get what is left of it.
  return waited;
}

const Worker& no_worker() {
  static const Worker worker;
  return worker;
}

}  // namespace

struct OutgoingCall::Parts {
  explicit Parts(RRefService& rrefs) : references(rrefs, /*is_answer=*/false) {}
  // Parts are as large as an envelope, so each thread keeps freed memory for its next calls.
  static void* operator new(std::size_t) { return BlockCache<sizeof(Parts)>::take(); }
  static void operator delete(void* parts) { BlockCache<sizeof(Parts)>::give(parts); }

  EnvelopeBox envelope;
  MessageReferences references;
  // State of the call until it completes; nullptr after send(), which passes it on.
  PendingCalls::Taken call = std::make_unique<PendingCall>();
  // The map of Destination::with_device_map(); nullptr without.
  std::shared_ptr<const DeviceMap> device_map;
};

OutgoingCall::OutgoingCall(Caller& caller, const Destination& destination, std::string callee)
    : caller_(caller),
      parts_(std::make_unique<Parts>(caller.rrefs())),
      to_(&no_worker()),
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
  if (destination.device_map() != nullptr) {
    parts_->device_map = destination.device_map();
    set_status(inverse(*parts_->device_map).status());
  }
  if (destination.is_ordered()) request_.set_order_key(order_key_of_this_thread());
  call->started = Clock::system().now();
  call->sent_at = call->started;
  call->timeout = destination.timeout().value_or(caller.runtime().options.rpc_timeout);
  call->deadline = call_deadline(call->timeout, call->started, CallContext::current().get());
  const absl::Duration left = call->deadline - call->started;
  if (left <= absl::ZeroDuration()) {
    set_status(absl::DeadlineExceededError(
        absl::StrCat("the call has expired before it was sent: ",
                     left < call->timeout
                         ? "the deadline of the call that this handler serves has passed"
                         : absl::StrCat("timeout must be positive, got ", absl::FormatDuration(call->timeout),
                                        " (absl::InfiniteDuration() means no limit)"))));
  }
  // The deadline of the served call comes first. `timeout` is used in messages only, so it is rounded.
  if (left < call->timeout) call->timeout = absl::Ceil(left, absl::Milliseconds(1));
}

// A call that was not sent, for example because the Codec of an argument threw, may hold references already.
// Their forks would stay until the receiver is lost, because no message brings them there.
OutgoingCall::~OutgoingCall() {
  if (!sent_) caller_.rrefs().undo(request().arguments(), *to_);
}

// A function may be idempotent, and a request to it still not:
//   - Forks in the arguments, the fork of a remote result, and nodes of an autograd graph are counted. They
//     must not arrive twice.
//   - Ordered calls must start in order, and a repetition would arrive after later calls.
//   - The connection of a worker with itself does not break.
bool OutgoingCall::is_repeatable() const {
  const AgentRuntime& runtime = caller_.runtime();
  return idempotent_ && runtime.options.retry.max_attempts > 1 && !request_.has_result_rref() &&
         request_.order_key() == 0 && request_.arguments().references_size() == 0 &&
         !request_.arguments().has_graph() && *to_ != runtime.self;
}

absl::Status OutgoingCall::encode(const TensorSet& tensors, const DeviceMap* map, TensorSharing sharing,
                                  bool repeatable, EncodedTensors& encoded) {
  const AgentDevices& devices = caller_.runtime().devices;
  proto::Payload& payload = *request_.mutable_arguments();
  if (map == nullptr && !devices.any())
    return tensor_backend()->encode(tensors, sharing, nullptr, payload, encoded);
  DeviceRoute route = devices.route_to(*to_, map);
  route.as_bytes |= repeatable;
  return tensor_backend()->encode(tensors, sharing, &route, payload, encoded);
}

uint64_t OutgoingCall::send(Completion done) {
  // From here on this function takes the references back if it fails, not the destructor.
  sent_ = true;
  AgentRuntime& runtime = caller_.runtime();
  PendingCalls::Taken& call = parts_->call;
  proto::Payload& payload = *request_.mutable_arguments();
  EncodedTensors encoded;
  std::unique_ptr<TensorSet> tensors = encoder_.take_tensors();
  // The result comes back by the inverse of the map, also if no argument is a tensor.
  const DeviceMap* const map =
      status_.ok() ? runtime.devices.map_for(*to_, parts_->device_map.get()) : nullptr;
  if (map != nullptr) to_proto(*map, request_);
  // Handlers that run because of this call come after what this thread did on devices before it.
  if (runtime.order != nullptr) runtime.order->add();
  // 1. A call in an autograd context adds a node to the graph.
  if (status_.ok()) set_status(runtime.accepts_calls());
  if (status_.ok() && runtime.graph_hook != nullptr) {
    set_status(runtime.graph_hook->outgoing_request(*to_, tensors.get(), payload));
  }
  const bool repeatable = status_.ok() && is_repeatable();
  // 2. Encode the tensors. For a repeatable call they are copied, because the caller may change its tensors
  //    before a repetition is sent.
  if (status_.ok() && tensors != nullptr) {
    const TensorSharing sharing = repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow;
    set_status(encode(*tensors, map, sharing, repeatable, encoded));
    // Tensors that were given away are now owned by the buffers alone.
    tensors = nullptr;
  }
  // 3. Take a credit of the worker's flow window.
  if (status_.ok()) {
    uint64_t bytes = payload.ByteSizeLong();
    for (const transport::Buffer& buffer : encoded.buffers) bytes += buffer.size();
    absl::StatusOr<FlowCredit> credit = enter_window(*call, bytes, runtime);
    set_status(credit.status());
    if (credit.ok()) call->credit = *std::move(credit);
  }
  // Nothing has been sent. Undo step 1 and the references of the arguments, then report the error. A credit
  // is given back when the call is destroyed.
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
    caller_.send_repeatable(id, *parts_->envelope, std::move(encoded), std::move(call));
  } else {
    caller_.send(id, *parts_->envelope, std::move(encoded), borrow_, std::move(call));
  }
  return id;
}

}  // namespace gradwire::rpc
