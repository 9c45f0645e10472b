#include "gradwire/rpc/caller/request_steps.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/caller/answer_by.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/caller/flow_wait.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/trace/trace_codec.h"
#include "gradwire/rpc/trace_context.h"

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
absl::StatusOr<FlowCredit> enter_window(PendingCall& call, uint64_t id, uint64_t bytes, Caller& caller) {
  AgentRuntime& runtime = caller.runtime();
  const FlowOptions& flow = runtime.options.flow;
  FlowCredit credit = call.peer->flow.try_enter(bytes, FlowWindow::Bounds(flow));
  if (credit) return credit;
  const CreditWaits::Scope reported(caller.pending().credit_waits(),
                                    {.identity = {runtime.self.incarnation, id},
                                     .parent = call.parent,
                                     .callee = call.callee,
                                     .peer = call.incarnation,
                                     .since = call.started,
                                     .deadline = call.deadline,
                                     .state = CallState::kWaitingForCredit});
  absl::StatusOr<FlowCredit> waited = enter_full_window(
      call.peer->flow, flow, {call.callee, call.peer->worker.name, bytes, call.deadline, call.timeout},
      runtime.executor, *runtime.timers);
  const absl::Time before = call.sent_at;
  call.sent_at = Clock::system().now();
  if (runtime.call_metrics != nullptr) {
    Peer& peer = *call.peer;
    peer.made_metrics.in(*runtime.call_metrics, peer.worker.name).waited_for_window(call.sent_at - before);
  }
  // The time of the wait is part of the timeout, so the callee must get what is left of it.
  return waited;
}

// Lets profilers see the call.
void begin_profile(CallProfiler& profiler, const RequestToSend& send, PendingCall& call,
                   proto::Request& request) {
  const CallKind kind = request.has_fetch()         ? CallKind::kFetch
                        : request.has_result_rref() ? CallKind::kRemote
                        : send.borrow               ? CallKind::kSync
                                                    : CallKind::kAsync;
  call.profile = profiler.begin_call({kind, call.callee, send.caller.runtime().self.name, send.to.name});
  if (call.profile->wants_events()) request.set_profile(true);
}

const Worker& no_worker() {
  static const Worker worker;
  return worker;
}

}  // namespace

const Worker& open_request(Caller& caller, const Destination& destination, std::string callee,
                           absl::Time started, RequestParts& parts, absl::Status& status) {
  const PendingCalls::Taken& call = parts.call;
  const Worker* to = &no_worker();
  call->callee = std::move(callee);
  call->parent = current_parent();
  absl::StatusOr<std::shared_ptr<Peer>> peer = caller.find(destination);
  if (peer.ok()) {
    call->peer = *std::move(peer);
    to = &call->peer->worker;
    call->incarnation = to->incarnation;
    parts.references.set_receiver(*to);
  } else {
    status.Update(peer.status());
  }
  if (destination.device_map() != nullptr) {
    parts.device_map = destination.device_map();
    status.Update(inverse(*parts.device_map).status());
  }
  if (const auto& trace = ExecutionSlot<TraceContext>::get(); trace != nullptr)
    to_proto(*trace, *parts.request().mutable_trace());
  if (destination.is_ordered()) parts.request().set_order_key(order_key_of_this_thread());
  call->started = started;
  call->sent_at = call->started;
  call->timeout = destination.timeout().value_or(caller.runtime().rpc_timeout.get());
  call->deadline = call_deadline(call->timeout, call->started, CallContext::current().get());
  const absl::Duration left = call->deadline - call->started;
  if (left <= absl::ZeroDuration()) {
    status.Update(absl::DeadlineExceededError(
        absl::StrCat("the call has expired before it was sent: ",
                     left < call->timeout
                         ? "the deadline of the call that this handler serves has passed"
                         : absl::StrCat("timeout must be positive, got ", absl::FormatDuration(call->timeout),
                                        " (absl::InfiniteDuration() means no limit)"))));
  }
  // The deadline of the served call comes first. `timeout` is used in messages only, so it is rounded.
  if (left < call->timeout) call->timeout = absl::Ceil(left, absl::Milliseconds(1));
  return *to;
}

// A function may be idempotent, and a request to it still not:
//   - Forks in the arguments, the fork of a remote result, and nodes of an autograd graph are counted. They
//     must not arrive twice.
//   - Ordered calls must start in order, and a repetition would arrive after later calls.
//   - The connection of a worker with itself does not break.
bool may_repeat(const AgentRuntime& runtime, const proto::Request& request, const Worker& to) {
  return runtime.options.retry.max_attempts > 1 && !request.has_result_rref() && request.order_key() == 0 &&
         request.arguments().references_size() == 0 && !request.arguments().has_graph() && to != runtime.self;
}

uint64_t send_request(const RequestToSend& send, absl::Status status, OutgoingCall::Completion done) {
  Caller& caller = send.caller;
  const Worker& to = send.to;
  AgentRuntime& runtime = caller.runtime();
  PendingCalls::Taken& call = send.parts.call;
  proto::Request& request = send.parts.request();
  proto::Payload& payload = *request.mutable_arguments();
  EncodedTensors encoded;
  if (CallProfiler* const profiler = active_call_profiler()) begin_profile(*profiler, send, *call, request);
  // The result comes back by the inverse of the map, also if no argument is a tensor.
  const DeviceMap* const map =
      status.ok() ? runtime.devices.map_for(to, send.parts.device_map.get()) : nullptr;
  if (map != nullptr) to_proto(*map, request);
  // Handlers that run because of this call come after what this thread did on devices before it.
  if (runtime.order != nullptr) runtime.order->add();
  // 1. A call in an autograd context adds a node to the graph.
  if (status.ok()) status = runtime.accepts_calls();
  if (status.ok() && runtime.graph_hook != nullptr && send.joins_context) {
    status = runtime.graph_hook->outgoing_request(to, send.tensors, payload);
  }
  const bool repeatable = status.ok() && send.is_repeatable();
  const uint64_t id = caller.next_id();
  // 2. Encode the tensors.
  if (status.ok() && send.tensors != nullptr) status = send.encode(map, repeatable, encoded);
  // 3. Take a credit of the worker's flow window.
  if (status.ok()) {
    uint64_t bytes = payload.ByteSizeLong();
    for (const transport::Buffer& buffer : encoded.buffers) bytes += buffer.size();
    absl::StatusOr<FlowCredit> credit = enter_window(*call, id, bytes, caller);
    status = credit.status();
    if (credit.ok()) call->credit = *std::move(credit);
  }
  // Nothing has been sent. Undo step 1 and the references of the arguments, then report the error. A credit
  // is given back when the call is destroyed.
  if (!status.ok()) {
    caller.rrefs().undo(payload, to);
    if (payload.has_graph()) runtime.graph_hook->outgoing_failed(to, payload.graph());
    done(with_context(status, absl::StrCat("calling \"", call->callee, "\"")));
    return 0;
  }
  // 4. From here on the call belongs to the Caller.
  call->references = send.parts.references.take();
  call->done = std::move(done);
  if (repeatable) {
    caller.send_repeatable(id, *send.parts.envelope, std::move(encoded), std::move(call));
  } else {
    caller.send(id, *send.parts.envelope, std::move(encoded), send.borrow, std::move(call));
  }
  return id;
}

}  // namespace gradwire::rpc
