#include "gradwire/rpc/caller/request_steps.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/profile/call_profiler.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/trace/trace_codec.h"
#include "gradwire/rpc/trace/trace_context.h"

namespace gradwire::rpc {
namespace {

// A call for which a window has no room.
struct FlowRequest {
  std::string callee;
  std::string worker;  // The name of the callee's worker.
  uint64_t bytes = 0;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  absl::Duration timeout;                        // As PendingCall::timeout, for messages.
};

// The wait of a call for room in the flow window of its worker. The thread of the caller waits, because a
// program that starts more work than the window holds must be slowed down.

// One wait for a credit. The first of credit, deadline and cancellation decides how it ends.
struct Waiting {
  explicit Waiting(const std::shared_ptr<Executor>& executor) : ended(executor) {}

  void end(absl::Status status) {
    if (!decided.exchange(true)) ended.set_result(std::move(status));
  }

  std::atomic<bool> decided{false};
  FlowCredit credit;  // Set before `ended` completes.
  Promise<void> ended;
};

std::string describe_usage(const FlowWindow::Usage& usage, const FlowOptions& options,
                           const FlowRequest& request) {
  return absl::StrCat(usage.calls, " calls with ", usage.bytes, " bytes in progress on worker \"",
                      request.worker, "\", this call has ", request.bytes,
                      " bytes (RpcBackendOptions.flow: max_calls ", options.max_calls, ", max_bytes ",
                      options.max_bytes, ")");
}

// Handles a full window as `options` say: fails with ResourceExhausted, or waits for a credit on the calling
// thread, which drives the event loop through `executor` meanwhile. Errors of the wait:
//   DeadlineExceeded    The deadline of the call has come.
//   ResourceExhausted   No thread is left for a handler that waits.
//   any                 The reason why the call that this thread serves was cancelled.
// If the worker is lost or the agent shuts down, the calls in the window end. Then the wait succeeds, and
// sending fails.
absl::StatusOr<FlowCredit> enter_full_window(FlowWindow& window, const FlowOptions& options,
                                             const FlowRequest& request,
                                             const std::shared_ptr<Executor>& executor, TimerQueue& timers) {
  if (options.when_full == FlowPolicy::kResourceExhausted) {
    return with_worker(
        absl::ResourceExhaustedError(absl::StrCat(
            "cannot start \"", request.callee, "\": the flow window is full with ",
            describe_usage(window.usage(), options, request), "; wait for answers, or raise the limits")),
        request.worker);
  }
  // A credit, the deadline and a cancellation may come at the same time, on three threads. Each callback
  // shares `waiting`, because it may still run when this function has returned. A credit must not be lost in
  // any order:
  //   1. The first event sets `decided` and completes `ended`.
  //   2. A credit that comes second is destroyed in its callback, which gives it back.
  //   3. result() may also fail by itself, with ResourceExhausted if waiting would leave no thread. A credit
  //      that comes after that is stored in `waiting`. It is given back when the window drops the callback,
  //      the last owner.
  auto waiting = std::make_shared<Waiting>(executor);
  const uint64_t waiter =
      window.wait(request.bytes, FlowWindow::Bounds(options), [waiting](FlowCredit credit) {
        // If the wait has ended already, the credit is destroyed here, which gives it back.
        if (waiting->decided.exchange(true)) return;
        waiting->credit = std::move(credit);
        waiting->ended.set_value();
      });
  // There was room by now, and the callback has run inside wait().
  if (waiter == 0) return std::move(waiting->credit);
  const uint64_t timer = timers.schedule(
      request.deadline, [waiting] { waiting->end(absl::DeadlineExceededError("the flow window is full")); });
  const std::shared_ptr<const CallContext> serving = CallContext::current();
  const uint64_t listener =
      serving == nullptr ? 0
                         : serving->cancellation().on_cancelled_inline(
                               [waiting, token = serving->cancellation()] { waiting->end(token.reason()); });
  // The waiting thread drives the event loop meanwhile, so answers that give credits back are received.
  absl::Status status = waiting->ended.future().result();
  // The token and the timer queue must not keep `waiting` until the end of the served call, or until the
  // deadline.
  if (serving != nullptr) serving->cancellation().forget(listener);
  timers.cancel(timer);
  if (status.ok()) return std::move(waiting->credit);
  // Read the usage before cancel_wait(), which may admit the calls behind this one.
  const FlowWindow::Usage usage = window.usage();
  window.cancel_wait(waiter);
  return with_worker(
      absl::Status(
          status.code(),
          absl::StrCat(
              "cannot start \"", request.callee, "\": the flow window was full",
              absl::IsDeadlineExceeded(status)
                  ? absl::StrCat(" until the deadline after ", absl::FormatDuration(request.timeout))
                  : std::string(),
              ": ", describe_usage(usage, options, request),
              absl::IsDeadlineExceeded(status) ? std::string() : absl::StrCat("; ", status.message()))),
      request.worker);
}

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
                                     .state = CallState::kWaitingForCredit,
                                     .stream_of = call.stream_of == nullptr ? "" : *call.stream_of});
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
  const std::shared_ptr<const CallContext> serving = CallContext::current();
  if (serving != nullptr && serving->root()) {
    proto::CallRoot& root = *parts.request().mutable_root();
    root.set_caller(serving->root().caller);
    root.set_call_id(serving->root().number);
  }
  call->deadline = call_deadline(call->timeout, call->started, serving.get());
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
  // After an error or an exception nothing has been sent. Undo step 1 and the references of the arguments. A
  // credit is given back when the call is destroyed.
  absl::Cleanup undo = [&] {
    run_contained("taking back the references of a call", [&] {
      caller.rrefs().undo(payload, to);
      if (payload.has_graph()) runtime.graph_hook->outgoing_failed(to, payload.graph());
    });
  };
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
  if (status.ok() && send.tensors != nullptr) {
    encoded.executor = runtime.executor;
    status = send.encode(map, repeatable, encoded);
  }
  // 3. Take a credit of the worker's flow window.
  if (status.ok()) {
    uint64_t bytes = payload.ByteSizeLong();
    for (const transport::Buffer& buffer : encoded.buffers) bytes += buffer.size();
    absl::StatusOr<FlowCredit> credit = enter_window(*call, id, bytes, caller);
    status = credit.status();
    if (credit.ok()) call->credit = *std::move(credit);
  }
  if (!status.ok()) {
    std::move(undo).Invoke();
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
  std::move(undo).Cancel();
  return id;
}

}  // namespace gradwire::rpc
