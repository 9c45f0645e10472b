#include "gradwire/rpc/callee/served_call.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/current_agent.h"
#include "gradwire/rpc/flight/call_parent.h"
#include "gradwire/rpc/link/ahead/send_ahead.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/rref/message_references.h"
#include "gradwire/rpc/trace/trace_context.h"
#include "gradwire/rpc/transfers/transfer_watch.h"

// A call from the thread that runs it to its answer. run() decodes the arguments and passes the call to its
// callee. The callee calls finish() or fail(), on this thread or later on another one. Both build the answer
// and send it with answer().
namespace gradwire::rpc {
namespace {

// The call whose callee this thread is running; nullptr if none. finish() uses it to find out whether the
// handler's ExecutionState is current on this thread.
thread_local const ServedCall* running = nullptr;

// Handlers run on streams of their own, which wait for the device work that came before.
void enter_streams(const AgentRuntime& runtime, StreamOrder::Work& work,
                   std::unique_ptr<StreamScope>& streams) {
  if (runtime.order == nullptr) return;
  streams = nullptr;
  streams = runtime.handler_streams->enter();
  runtime.order->begin(work);
}

// Lets profilers see the handler, if there are any, or if the caller asks for its events.
std::unique_ptr<ProfiledHandler> begin_profile(const IncomingCall& incoming, const std::string& callee,
                                               const std::string& worker) {
  CallProfiler* const profiler = incoming.request().profile() ? call_profiler() : active_call_profiler();
  if (profiler == nullptr) return nullptr;
  return profiler->begin_handler({CallKind::kAsync, callee, incoming.from.name, worker},
                                 incoming.request().profile());
}

// Encodes the tensors of a result. They travel by the inverse of the caller's device map.
absl::Status encode_result_tensors(const TensorSet& tensors, const IncomingCall& incoming,
                                   const AgentDevices& devices, proto::Payload& payload,
                                   EncodedTensors& encoded) {
  // An answer that may be sent again must own its bytes.
  const bool repeatable = incoming.is_repeatable();
  const TensorSharing sharing = repeatable ? TensorSharing::kCapture : TensorSharing::kBorrow;
  const bool mapped = incoming.request().has_device_map();
  if (!mapped && !devices.any()) return tensor_backend()->encode(tensors, sharing, nullptr, payload, encoded);
  GRADWIRE_ASSIGN_OR_RETURN(const DeviceMap map, device_map_of(incoming.request()));
  GRADWIRE_ASSIGN_OR_RETURN(const DeviceMap back, inverse(map));
  DeviceRoute route = devices.route_to(incoming.from, mapped ? &back : nullptr);
  route.is_answer = true;
  route.as_bytes |= repeatable;
  return tensor_backend()->encode(tensors, sharing, &route, payload, encoded);
}

// Checks that a method is called on an object of its class.
absl::Status check_object(const Callee& method, const TypeOps* type) {
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("\"", method.name, "\" was called without an object"));
  if (method.object_type != type->name()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", method.name,
                                                   "\" cannot be called on an object of type ", type->name(),
                                                   ": it is a method of ", method.object_type));
  }
  return absl::OkStatus();
}

// Takes back the references and graph nodes of a result that was not sent, and puts the error in its place.
void refuse_result(const ServedCall& call, const ServedCall::Services& services, const absl::Status& status,
                   proto::Response& response) {
  if (response.has_result()) {
    services.rrefs.undo(response.result(), call.incoming().from);
    if (response.result().has_graph() && services.runtime.graph_hook != nullptr) {
      services.runtime.graph_hook->outgoing_failed(call.incoming().from, response.result().graph());
    }
    response.clear_result();
  }
  status_to_proto(with_worker(with_context(status, absl::StrCat("the result of \"", call.callee(), "\"")),
                              services.runtime.self.name),
                  *response.mutable_status());
}

}  // namespace

ServedCall::ServedCall(const Services& services, std::shared_ptr<Agent> agent, IncomingCall incoming)
    : agent_(std::move(agent)),
      services_(services),
      incoming_(std::move(incoming)),
      executor_(services.runtime.executor),
      callee_(callee_of(incoming_.request())) {
  services_.calls.request_arrived();
  const proto::Request& request = incoming_.request();
  CalleeCost* cost = nullptr;
  switch (request.callee_case()) {
    case proto::Request::kMethod:
      kind_ = CalleeKind::kMethod;
      break;
    case proto::Request::kConstructor:
      kind_ = CalleeKind::kConstructor;
      break;
    case proto::Request::kFunction:
      break;
    case proto::Request::kOperator:
      cost = operator_cost(callee_);
      break;
    case proto::Request::kFetch:
      cost = &services_.fetch_cost;
      break;
    default:
      break;
  }
  if (request.has_function() || request.has_method() || request.has_constructor()) {
    registered_ = Registry::instance().find(kind_, callee_);
    if (registered_ != nullptr) cost = registered_->cost;
  }
  if (cost == nullptr) return;
  std::size_t bytes = 0;
  for (const transport::Buffer& buffer : incoming_.buffers) bytes += buffer.size();
  cost_ = cost->of(bytes);
}

// A handler may drop the call without an end. Its caller would wait until the deadline.
ServedCall::~ServedCall() {
  if (!ended_.load() && !trace_.dropped) {
    fail(describe_error([this] {
      return absl::InternalError(absl::StrCat("\"", callee_, "\" was dropped without an answer"));
    }));
  }
  services_.calls.request_dropped();
  // The object of a method, and hooks in the graph of the arguments, belong to the program.
  if (!on_duty() || (target_.value == nullptr && arguments_.tensors == nullptr)) return;
  executor_->run_off_duty([object = std::move(target_.value), tensors = std::move(arguments_.tensors)] {});
}

// The call may go on, and the token may fire, on other threads at any time:
//   1. A place may let the call go on before its caller comes here. Then the call may wait at a later place
//      already, which counts.
//   2. The first wait registers with the token, once for all waits. If the token has fired before, its
//      callback runs here.
//   3. If the token fires between two waits, its callback finds nothing to leave. So each later wait asks the
//      token, after it has stored its `leave`.
void ServedCall::wait_at(CallState place, Leave leave) {
  bool first = false;
  {
    MutexLock lock(wait_mutex_);
    if (place < place_) return;
    first = place_ == CallState::kSent;
    place_ = place;
    leave_.swap(leave);
  }
  if (first) {
    // The token owns this callback, so the callback must not own the call, which owns the token.
    incoming_.token.on_cancelled_inline([weak = weak_from_this()] {
      if (const std::shared_ptr<ServedCall> call = weak.lock())
        call->end_wait(call->incoming_.token.reason());
    });
  } else if (absl::Status fired = incoming_.token.reason(); !fired.ok()) {
    end_wait(fired);
  }
}

void ServedCall::end_wait(const absl::Status& reason) {
  Leave leave;
  {
    MutexLock lock(wait_mutex_);
    leave = std::exchange(leave_, nullptr);
  }
  if (leave != nullptr) leave(reason);
}

void ServedCall::run() {
  try {
    run_handler();
  } catch (...) {
    fail(caught_in(callee_));
  }
}

void ServedCall::run_handler() {
  // A step before this one has thrown after it had queued the call.
  if (ended_.load()) return;
  const absl::Time now = Clock::system().now();
  trace_.at(CallState::kRunning);
  services_.runtime.recorder->started(trace_.record, now);
  CurrentAgent::Scope agent_scope(agent_);
  ExecutionSlot<CallContext>::Scope call_scope(std::make_shared<CallContext>(
      incoming_.from, incoming_.deadline, incoming_.token, incoming_.identity(), incoming_.root()));
  std::optional<TraceScope> trace_scope;
  if (incoming_.trace != nullptr)
    trace_scope.emplace(incoming_.trace->inside(CallContext::current()->identity()));
  const ParentScope parent_scope({});
  std::unique_ptr<StreamScope> streams;
  enter_streams(services_.runtime, device_work_, streams);
  const ServingScope serving(services_.runtime.self.name, callee_, incoming_.from.name);
  // A thread that waits inside a handler may run another call meanwhile. So the value before is restored.
  struct Running {
    explicit Running(const ServedCall* call) : outer(std::exchange(running, call)) {}
    ~Running() { running = outer; }
    const ServedCall* const outer;
  };
  const Running running_scope(this);
  profile_ = begin_profile(incoming_, callee_, services_.runtime.self.name);
  const RunningHandler profiled(profile_.get());
  begun_ = now;
  // If the call has expired or was cancelled, do not run it.
  if (incoming_.deadline != absl::InfiniteFuture() && now >= incoming_.deadline) {
    fail(absl::DeadlineExceededError(absl::StrCat("\"", callee_, "\" expired while it waited for its turn")));
  } else if (absl::Status cancelled = incoming_.token.reason(); !cancelled.ok()) {
    fail(cancelled);
  } else if (absl::Status unread = services_.calls.check_reader_again(incoming_.from, *incoming_.link);
             !unread.ok()) {
    fail(std::move(unread));
  } else {
    try {
      decode_and_serve(streams);
    } catch (...) {
      // Here, in the state of the handler.
      fail(caught_in(callee_));
    }
  }
  if (profile_ != nullptr) profile_->leave();
}

void ServedCall::decode_and_serve(std::unique_ptr<StreamScope>& streams) {
  arguments_.payload = {incoming_.envelope, &incoming_.request().arguments()};
  arguments_.references = std::move(incoming_.references);
  if (arguments_.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      fail(absl::InvalidArgumentError(
          absl::StrCat("\"", callee_, "\" got a tensor, but this program was linked without libtorch")));
      return;
    }
    // Copies to a device run on streams of the pool, beside the work of earlier handlers. Then the streams of
    // this handler, which are current again, wait for them.
    AgentDevices::Arrived arrived;
    absl::Status ready = services_.runtime.devices.decode(incoming_.from, *arguments_.payload,
                                                          std::move(incoming_.buffers), arrived);
    if (ready.ok()) {
      arguments_.tensors = std::move(arrived.tensors);
      arrived.streams = nullptr;
      if (arrived.fence != nullptr) {
        // The first tensors on a device: there was no stream for it.
        if (!services_.runtime.handler_streams->cover(*arguments_.tensors))
          enter_streams(services_.runtime, device_work_, streams);
        ready = arrived.fence->wait();
      }
    }
    if (!ready.ok()) {
      fail(with_context(ready, absl::StrCat("the arguments of \"", callee_, "\"")));
      return;
    }
  }
  if (arguments_.payload->has_graph()) {
    absl::Status joined = services_.runtime.graph_hook->incoming_request(
        incoming_.from, arguments_.tensors.get(), *arguments_.payload);
    if (!joined.ok()) {
      fail(with_context(joined, absl::StrCat("\"", callee_, "\"")));
      return;
    }
  }
  dispatch();
}

void ServedCall::dispatch() {
  switch (incoming_.request().callee_case()) {
    case proto::Request::kFunction:
    case proto::Request::kMethod:
    case proto::Request::kConstructor:
      break;
    case proto::Request::kOperator:
    case proto::Request::kScript: {
      const bool is_operator = incoming_.request().callee_case() == proto::Request::kOperator;
      ServeHandler handler = is_operator ? operator_handler() : script_handler();
      if (handler == nullptr) {
        fail(absl::NotFoundError(absl::StrCat("\"", callee_, "\": this program was linked without ",
                                              is_operator ? "operators" : "TorchScript", " (//rpc)")));
        return;
      }
      handler(shared_from_this());
      return;
    }
    case proto::Request::kFetch: {
      if (target_.value == nullptr) {
        fail(absl::InvalidArgumentError("to_here failed: the request has no RRef"));
        return;
      }
      finish(target_.value, target_.type);
      return;
    }
    default:
      fail(absl::InvalidArgumentError("malformed request: it names no callee"));
      return;
  }
  if (registered_ == nullptr) {
    fail(Registry::instance().unknown(kind_, callee_));
    return;
  }
  // The caller of a constructor may not know its parameter types. Its arguments are checked one by one
  // instead.
  if (kind_ != CalleeKind::kConstructor && incoming_.request().signature() != registered_->signature_hash) {
    fail(absl::InvalidArgumentError(
        absl::StrCat("signature mismatch: \"", callee_, "\" is ", registered_->signature, " on worker \"",
                     services_.runtime.self.name,
                     "\", but the caller has another signature; build both programs from the same source")));
    return;
  }
  if (kind_ == CalleeKind::kMethod) {
    if (absl::Status checked = check_object(*registered_, target_.type); !checked.ok()) {
      fail(checked);
      return;
    }
  }
  registered_->serve(shared_from_this());
}

// Sends the answer, once. The order of the steps matters:
//   1. Wait, without a thread, until the bytes of the result have been copied from their device. Those that
//      arrive early may be sent ahead. The call has ended for its handler, but stays in the table of calls,
//      so a graceful shutdown waits for it.
//   2. The call leaves the limits of its caller. For a repeatable call, keep the answer before it is sent.
//      From then on a repetition gets the kept answer, and this answer goes to the link on which the newest
//      attempt arrived.
//   3. Send the answer.
//   4. Report its references as sent, or take them back.
//   5. Copy what has not been sent of buffers that borrow the handler's value.
//   6. Only now end the call in the table: a graceful shutdown closes the links when no call is in progress.
//   7. Start the next call on a serial object.
void ServedCall::answer(proto::Envelope& envelope, EncodedTensors&& encoded, absl::Time now) {
  if (profile_ != nullptr) profile_->take(*envelope.mutable_response());
  if (encoded.copies != nullptr) {
    trace_.at(CallState::kAnswering);
    const EnvelopePtr waiting = make_envelope();
    own_bytes(encoded.buffers);
    (*waiting)->Swap(&envelope);
    SendAhead::start(
        services_.runtime.fences, std::move(encoded), [link = incoming_.link] { return link; },
        [self = shared_from_this(), waiting](const absl::Status& copied, EncodedTensors tensors) {
          if (!copied.ok()) {
            refuse_result(*self, self->services_, copied, *(*waiting)->mutable_response());
            tensors = EncodedTensors();
          }
          self->send_answer(**waiting, std::move(tensors), Clock::system().now());
        });
    return;
  }
  send_answer(envelope, std::move(encoded), now);
}

void ServedCall::send_answer(proto::Envelope& envelope, EncodedTensors&& encoded, absl::Time now) noexcept {
  services_.calls.leave_limits(incoming_);
  std::shared_ptr<Link> newest;
  if (incoming_.is_repeatable()) newest = services_.calls.keep_answer(incoming_, envelope, encoded.buffers);
  Link& link = newest != nullptr ? *newest : *incoming_.link;
  const bool borrows = any_borrowed(encoded.buffers);
  // Before the send, so that the record is complete when the caller has the answer.
  auto code = static_cast<absl::StatusCode>(envelope.response().status().code());
  record_end(now, code);
  const absl::StatusOr<uint64_t> ticket = send_or_refuse(link, envelope, std::move(encoded));
  if (!ticket.ok()) {
    // The connection has ended.
    code = ticket.status().code();
    record_end(now, code);
    run_contained("taking back a result",
                  [&] { refuse_result(*this, services_, ticket.status(), *envelope.mutable_response()); });
  } else {
    code = static_cast<absl::StatusCode>(envelope.response().status().code());
    run_contained("the references of a result", [&] {
      services_.rrefs.sent(envelope.response().result(), incoming_.from, [&] { return link.closed(); });
    });
    // From here on the handler's value may change, so copy the borrowed buffers that have not been sent yet.
    if (borrows && !run_contained("copying a result", [&] { link.capture(*ticket); })) link.cut(no_memory());
  }
  // After the send, so that the caller does not wait for it, and before the call leaves the table.
  run_contained("counting a call", [&] { count_end(now, code); });
  services_.calls.end(incoming_);
  if (on_ended_) run_contained("the end of a call on a serial object", on_ended_);
}

void ServedCall::record_end(absl::Time now, absl::StatusCode code) noexcept {
  run_contained("recording a call", [&] { services_.runtime.recorder->ended(trace_.record, now, code); });
}

// The steps, until one of them does not throw:
//   1. Send the answer.
//   2. Send the error instead.
//   3. End the link: the caller must not wait for an answer that does not come.
absl::StatusOr<uint64_t> ServedCall::send_or_refuse(Link& link, proto::Envelope& envelope,
                                                    EncodedTensors&& encoded) noexcept {
  try {
    return link.send_encoded(envelope, std::move(encoded), &incoming_.request());
  } catch (...) {
    try {
      refuse_result(*this, services_, status_from_exception(std::current_exception()),
                    *envelope.mutable_response());
      return link.send(envelope, {}, &incoming_.request());
    } catch (...) {
      link.cut(no_memory());
      return no_memory();
    }
  }
}

// A handler may fork. Its call belongs to the parent, which answers it.
void ServedCall::end_if_forked() const {
  if (!services_.runtime.mark.here()) end_forked_child("the caller of a handler");
}

void ServedCall::finish(std::shared_ptr<void> value, const TypeOps* type, StreamFencePtr fence) {
  end_if_forked();
  // The first end wins. A handler may end its call at the same time as a deadline or a cancellation.
  if (ended_.exchange(true)) return;
  try {
    if (running == this) {
      finish_in_state(std::move(value), type, fence);
    } else {
      // The handler returned a Future, which completes on another thread. Encoding may call code of the user,
      // and needs the autograd context and the streams of the handler.
      ScopedExecutionState scope(state_);
      finish_in_state(std::move(value), type, fence);
    }
  } catch (...) {
    // Nothing has been sent.
    answer_error(caught_in(callee_));
  }
}

void ServedCall::finish_in_state(std::shared_ptr<void> value, const TypeOps* type,
                                 const StreamFencePtr& fence) {
  EnvelopeBox envelope;
  proto::Response& response = *envelope->mutable_response();
  response.set_call_id(incoming_.request().call_id());
  EncodedTensors encoded;
  // The streams of the handler wait for a value that was made elsewhere.
  const absl::Status ordered = fence == nullptr ? absl::OkStatus() : fence->wait();
  if (incoming_.is_remote()) {
    // The value stays here. The answer only confirms that it exists.
    services_.rrefs.values().set(from_proto(incoming_.request().result_rref()),
                                 OwnedValue{std::move(value), type, nullptr, nullptr});
  } else {
    absl::Status status = ordered;
    try {
      if (status.ok()) status = encode_result(std::move(value), type, response, encoded);
    } catch (...) {
      status = status_from_exception(std::current_exception());
    }
    if (!status.ok()) {
      // The references and graph nodes that were added before the error must not wait for a receiver.
      refuse_result(*this, services_, status, response);
      encoded = EncodedTensors();
    }
  }
  const absl::Time now = Clock::system().now();
  // The encoding was the last device work of the call.
  if (services_.runtime.order != nullptr) services_.runtime.order->end(device_work_);
  answer(*envelope, std::move(encoded), now);
}

void ServedCall::count_end(absl::Time now, absl::StatusCode code) {
  CallMetrics* const metrics = services_.runtime.call_metrics.get();
  if (metrics == nullptr) return;
  // A name that a caller has made up is not counted as a function, because each would be a series of its own.
  const bool known = cost_ != nullptr || (incoming_.request().has_script() && code == absl::StatusCode::kOk);
  const int64_t ended_ns = absl::ToUnixNanos(now);
  const int64_t begun_ns = begun_ != absl::InfinitePast() ? absl::ToUnixNanos(begun_) : ended_ns;
  incoming_.link->served_metrics.in(*metrics, incoming_.from.name)
      .served(known ? absl::string_view(callee_) : absl::string_view(), code,
              begun_ns - absl::ToUnixNanos(incoming_.arrived), ended_ns - begun_ns);
}

absl::Status ServedCall::encode_result(std::shared_ptr<void> value, const TypeOps* type,
                                       proto::Response& response, EncodedTensors& encoded) {
  if (type->encode == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a value of type ", type->name(),
                     " cannot be sent, because it has no Codec; keep it on its worker with remote()"));
  }
  proto::Payload& payload = *response.mutable_result();
  MessageReferences references(services_.rrefs, /*is_answer=*/true);
  references.set_receiver(incoming_.from);
  Encoder encoder(payload, &references);
  GRADWIRE_RETURN_IF_ERROR(type->encode(value.get(), encoder, *payload.add_values()));
  // Drop the value: a tensor that is now held by the tensor set alone is sent from its own memory, without a
  // copy.
  value.reset();
  std::unique_ptr<TensorSet> tensors = encoder.take_tensors();
  if (GraphHook* hook = services_.runtime.graph_hook) {
    GRADWIRE_RETURN_IF_ERROR(hook->outgoing_answer(incoming_.from, tensors.get(), payload));
  }
  if (tensors == nullptr) return absl::OkStatus();
  encoded.executor = executor_;
  return encode_result_tensors(*tensors, incoming_, services_.runtime.devices, payload, encoded);
}

void ServedCall::fail(absl::Status status) noexcept {
  end_if_forked();
  if (ended_.exchange(true)) return;
  run_contained("the device work of a call", [&] {
    if (services_.runtime.order == nullptr) return;
    // Device work of the handler may have begun.
    std::optional<ScopedExecutionState> scope;
    if (running != this) scope.emplace(state_);
    services_.runtime.order->end(device_work_);
  });
  answer_error(describe_error([&] { return with_worker(status, services_.runtime.self.name); }));
}

void ServedCall::answer_error(absl::Status status) noexcept {
  // Calls on the RRef, from any worker, may wait for the value. They receive the error.
  if (incoming_.is_remote()) {
    run_contained("the error of a remote value", [&] {
      services_.rrefs.values().set(from_proto(incoming_.request().result_rref()), status);
    });
  }
  const absl::Time now = Clock::system().now();
  EnvelopeBox envelope;
  const bool described = run_contained("the error of a call", [&] {
    proto::Response& response = *envelope->mutable_response();
    response.set_call_id(incoming_.request().call_id());
    status_to_proto(services_.runtime.for_caller(incoming_.from, std::move(status)),
                    *response.mutable_status());
    if (profile_ != nullptr) profile_->take(response);
  });
  if (!described) {
    // The caller must not wait for an answer that does not come. An envelope without a body ends the link,
    // too.
    incoming_.link->cut(no_memory());
    envelope->Clear();
  }
  send_answer(*envelope, EncodedTensors(), now);
}

void ServedCall::release_arguments() {
  arguments_.tensors = nullptr;
  arguments_.references.clear();
}

}  // namespace gradwire::rpc
