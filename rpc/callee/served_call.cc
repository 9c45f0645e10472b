#include "gradwire/rpc/callee/served_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent/current_agent.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/message_references.h"

namespace gradwire::rpc {
namespace {

// The call whose callee the calling thread runs.
thread_local const ServedCall* running = nullptr;

// A method must be called on an object of its class.
absl::Status check_object(const Callee& method, const TypeOps* type) {
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("\"", method.name, "\" was called without an object"));
  if (method.object_type != type->name()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", method.name, "\" was called on an object of type ",
                                                   type->name(), ", it belongs to ", method.object_type));
  }
  return absl::OkStatus();
}

}  // namespace

ServedCall::ServedCall(const Parts& parts, std::shared_ptr<Agent> agent, IncomingCall incoming)
    : agent_(std::move(agent)),
      parts_(parts),
      incoming_(std::move(incoming)),
      executor_(parts.runtime.executor),
      callee_(callee_of(incoming_.request())) {
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
      cost = &parts_.fetch_cost;
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

ServedCall::~ServedCall() {
  if (!ended_.load())
    fail(absl::InternalError(absl::StrCat("\"", callee_, "\" was dropped without an answer")));
}

void ServedCall::run() {
  CurrentAgent::Scope agent_scope(agent_);
  ExecutionSlot<CallContext>::Scope call_scope(
      std::make_shared<CallContext>(incoming_.from, incoming_.deadline, incoming_.token));
  const ServingScope serving(parts_.runtime.self.name, callee_, incoming_.from.name);
  const ServedCall* const outer = std::exchange(running, this);
  // Nobody waits any more: do not begin.
  if (absl::Status gone = incoming_.token.reason(); !gone.ok()) {
    fail(gone);
  } else if (incoming_.deadline != absl::InfiniteFuture() && Clock::system().now() >= incoming_.deadline) {
    fail(absl::DeadlineExceededError(
        absl::StrCat("\"", callee_, "\" had to wait for its turn until its time was up")));
  } else {
    decode_and_serve();
  }
  running = outer;
}

void ServedCall::decode_and_serve() {
  arguments_.payload = {incoming_.envelope, &incoming_.request().arguments()};
  arguments_.references = std::move(incoming_.references);
  if (arguments_.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      fail(absl::InvalidArgumentError(
          absl::StrCat("\"", callee_, "\" got a tensor, but this program was linked without libtorch")));
      return;
    }
    auto tensors = tensor_backend()->decode(*arguments_.payload, std::move(incoming_.buffers));
    if (!tensors.ok()) {
      fail(with_context(tensors.status(), absl::StrCat("the arguments of \"", callee_, "\"")));
      return;
    }
    arguments_.tensors = *std::move(tensors);
  }
  if (arguments_.payload->has_graph()) {
    absl::Status joined = parts_.runtime.graph_hook->incoming_request(
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
        fail(absl::InvalidArgumentError("to_here without an RRef"));
        return;
      }
      finish(target_.value, target_.type);
      return;
    }
    default:
      fail(absl::InvalidArgumentError("the request names nothing to call"));
      return;
  }
  if (registered_ == nullptr) {
    fail(Registry::instance().unknown(kind_, callee_));
    return;
  }
  // A constructor's caller does not know its parameter types; the arguments are checked one by one.
  if (kind_ != CalleeKind::kConstructor && incoming_.request().signature() != registered_->signature_hash) {
    fail(absl::InvalidArgumentError(absl::StrCat("\"", callee_, "\" has another signature on worker \"",
                                                 parts_.runtime.self.name, "\": ", registered_->signature,
                                                 "; build both programs from the same source")));
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

void ServedCall::answer(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers) {
  std::shared_ptr<Link> newest;
  if (incoming_.is_repeatable()) newest = parts_.calls.keep_answer(incoming_, envelope, buffers);
  Link& link = newest != nullptr ? *newest : *incoming_.link;
  const bool borrows = any_borrowed(buffers);
  absl::StatusOr<uint64_t> ticket = link.send(envelope, std::move(buffers));
  if (!ticket.ok()) {
    // The caller is gone: what the answer carried stays here.
    undo(envelope.response().result());
  } else {
    parts_.rrefs.sent(envelope.response().result(), incoming_.from, link.closed());
    // The value may change from here on; what has not left yet is copied.
    if (borrows) link.capture(*ticket);
  }
  parts_.calls.end(incoming_);
  if (on_ended_) on_ended_();
}

void ServedCall::undo(const proto::Payload& result) {
  parts_.rrefs.undo(result, incoming_.from);
  if (result.has_graph() && parts_.runtime.graph_hook != nullptr) {
    parts_.runtime.graph_hook->outgoing_failed(incoming_.from, result.graph());
  }
}

void ServedCall::finish(std::shared_ptr<void> value, const TypeOps* type) {
  if (ended_.exchange(true)) return;
  if (running == this) {
    finish_in_state(std::move(value), type);
  } else {
    ScopedExecutionState scope(state_);
    finish_in_state(std::move(value), type);
  }
}

void ServedCall::finish_in_state(std::shared_ptr<void> value, const TypeOps* type) {
  EnvelopeBox envelope;
  proto::Response& response = *envelope->mutable_response();
  response.set_call_id(incoming_.request().call_id());
  std::vector<transport::Buffer> buffers;
  if (incoming_.is_remote()) {
    parts_.rrefs.values().set(from_proto(incoming_.request().result_rref()),
                              OwnedValue{std::move(value), type, nullptr});
  } else {
    absl::Status encoded;
    try {
      encoded = encode_result(std::move(value), type, response, buffers);
    } catch (...) {
      encoded = status_from_exception(std::current_exception());
    }
    if (!encoded.ok()) {
      undo(response.result());
      response.clear_result();
      buffers.clear();
      status_to_proto(with_worker(with_context(encoded, absl::StrCat("the result of \"", callee_, "\"")),
                                  parts_.runtime.self.name),
                      *response.mutable_status());
    }
  }
  answer(*envelope, std::move(buffers));
}

absl::Status ServedCall::encode_result(std::shared_ptr<void> value, const TypeOps* type,
                                       proto::Response& response, std::vector<transport::Buffer>& buffers) {
  if (type->encode == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", type->name(), " cannot travel: it has no Codec; keep it here with remote()"));
  }
  proto::Payload& payload = *response.mutable_result();
  MessageReferences references(parts_.rrefs, /*is_answer=*/true);
  references.set_receiver(incoming_.from);
  Encoder encoder(payload, &references);
  GRADWIRE_RETURN_IF_ERROR(type->encode(value.get(), encoder, *payload.add_values()));
  value.reset();
  std::unique_ptr<TensorSet> tensors = encoder.take_tensors();
  if (GraphHook* hook = parts_.runtime.graph_hook) {
    GRADWIRE_RETURN_IF_ERROR(hook->outgoing_answer(incoming_.from, tensors.get(), payload));
  }
  if (tensors == nullptr) return absl::OkStatus();
  const TensorSharing sharing = incoming_.is_repeatable() ? TensorSharing::kCapture : TensorSharing::kBorrow;
  return tensor_backend()->encode(*tensors, sharing, payload, buffers);
}

void ServedCall::fail(absl::Status status) {
  if (ended_.exchange(true)) return;
  status = with_worker(std::move(status), parts_.runtime.self.name);
  if (incoming_.is_remote()) parts_.rrefs.values().set(from_proto(incoming_.request().result_rref()), status);
  proto::Envelope envelope;
  proto::Response& response = *envelope.mutable_response();
  response.set_call_id(incoming_.request().call_id());
  status_to_proto(status, *response.mutable_status());
  answer(envelope, {});
}

void ServedCall::release_arguments() {
  arguments_.tensors = nullptr;
  arguments_.references.clear();
}

}  // namespace gradwire::rpc
