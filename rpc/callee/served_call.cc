#include "gradwire/rpc/callee/served_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/agent/current_agent.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/lazy_references.h"

namespace gradwire::rpc {
namespace {

// The call whose callee the calling thread runs.
thread_local const ServedCall* running = nullptr;

}  // namespace

absl::Time deadline_of(const proto::Request& request, absl::Time arrived) {
  return request.timeout_us() <= 0 ? absl::InfiniteFuture()
                                   : arrived + absl::Microseconds(request.timeout_us());
}

std::string callee_of(const proto::Request& request) {
  switch (request.callee_case()) {
    case proto::Request::kFunction:
      return request.function();
    case proto::Request::kMethod:
      return request.method();
    case proto::Request::kConstructor:
      return request.constructor();
    case proto::Request::kOperator:
      return request.operator_();
    case proto::Request::kScript:
      return request.script();
    case proto::Request::kFetch:
      return "to_here";
    default:
      return "nothing";
  }
}

ServedCall::ServedCall(Parts parts)
    : parts_(std::move(parts)),
      deadline_(deadline_of(request(), parts_.arrived)),
      executor_(parts_.agent->executor()),
      callee_(callee_of(request())) {
  look_up();
}

void ServedCall::look_up() {
  CalleeCost* cost = nullptr;
  switch (request().callee_case()) {
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
      cost = &parts_.server->fetch_cost_;
      break;
    default:
      break;
  }
  if (request().has_function() || request().has_method() || request().has_constructor()) {
    registered_ = Registry::instance().find(kind_, callee_);
    if (registered_ != nullptr) cost = registered_->cost;
  }
  if (cost == nullptr) return;
  std::size_t bytes = 0;
  for (const transport::Buffer& buffer : parts_.buffers) bytes += buffer.size();
  cost_ = cost->of(bytes);
}

ServedCall::~ServedCall() {
  if (!ended_.load())
    fail(absl::InternalError(absl::StrCat("\"", callee_, "\" was dropped without an answer")));
}

void ServedCall::run() {
  CurrentAgent::Scope agent_scope(parts_.agent);
  ExecutionSlot<CallContext>::Scope call_scope(
      std::make_shared<CallContext>(parts_.from, deadline_, parts_.token));
  const ServingScope serving(agent().self().name, callee_, parts_.from.name);
  const ServedCall* const outer = std::exchange(running, this);
  // Nobody waits any more: do not begin.
  if (absl::Status gone = parts_.token.reason(); !gone.ok()) {
    fail(gone);
  } else if (deadline_ != absl::InfiniteFuture() && Clock::system().now() >= deadline_) {
    fail(absl::DeadlineExceededError(
        absl::StrCat("\"", callee_, "\" had to wait for its turn until its time was up")));
  } else {
    decode_and_serve();
  }
  running = outer;
}

void ServedCall::decode_and_serve() {
  arguments_.payload = {parts_.envelope, &request().arguments()};
  arguments_.references = std::move(parts_.references);
  if (arguments_.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      fail(absl::InvalidArgumentError(
          absl::StrCat("\"", callee_, "\" got a tensor, but this program was linked without libtorch")));
      return;
    }
    auto tensors = tensor_backend()->decode(*arguments_.payload, std::move(parts_.buffers));
    if (!tensors.ok()) {
      fail(with_context(tensors.status(), absl::StrCat("the arguments of \"", callee_, "\"")));
      return;
    }
    arguments_.tensors = *std::move(tensors);
  }
  if (arguments_.payload->has_graph()) {
    absl::Status joined = parts_.agent->graph_hook()->incoming_request(parts_.from, arguments_.tensors.get(),
                                                                       *arguments_.payload);
    if (!joined.ok()) {
      fail(with_context(joined, absl::StrCat("\"", callee_, "\"")));
      return;
    }
  }
  dispatch();
}

void ServedCall::dispatch() {
  switch (request().callee_case()) {
    case proto::Request::kFunction:
    case proto::Request::kMethod:
    case proto::Request::kConstructor:
      break;
    case proto::Request::kOperator:
    case proto::Request::kScript: {
      const bool is_operator = request().callee_case() == proto::Request::kOperator;
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
  if (kind_ != CalleeKind::kConstructor && request().signature() != registered_->signature_hash) {
    fail(absl::InvalidArgumentError(absl::StrCat("\"", callee_, "\" has another signature on worker \"",
                                                 parts_.agent->self().name, "\": ", registered_->signature,
                                                 "; build both programs from the same source")));
    return;
  }
  if (kind_ == CalleeKind::kMethod) {
    if (absl::Status checked = check_object(*registered_); !checked.ok()) {
      fail(checked);
      return;
    }
  }
  registered_->serve(shared_from_this());
}

absl::Status ServedCall::check_object(const Callee& callee) const {
  const TypeOps* type = target_.type;
  if (type == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("\"", callee_, "\" was called without an object"));
  if (callee.object_type != type->name()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", callee_, "\" was called on an object of type ",
                                                   type->name(), ", it belongs to ", callee.object_type));
  }
  return absl::OkStatus();
}

bool ServedCall::end() { return !ended_.exchange(true); }

void ServedCall::answer(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers) {
  std::shared_ptr<Link> newest;
  if (is_repeatable()) newest = parts_.server->end_repeatable(*this, envelope, buffers);
  Link& link = newest != nullptr ? *newest : *parts_.link;
  const bool borrows = any_borrowed(buffers);
  absl::StatusOr<uint64_t> ticket = link.send(envelope, std::move(buffers));
  if (!ticket.ok()) {
    // The caller is gone: what the answer carried stays here.
    undo(envelope.response().result());
  } else {
    parts_.server->rrefs_.sent(envelope.response().result(), parts_.from, link.closed());
    // The value may change from here on; what has not left yet is copied.
    if (borrows) link.capture(*ticket);
  }
  parts_.server->ended(*this);
  if (on_ended_) on_ended_();
}

void ServedCall::undo(const proto::Payload& result) {
  parts_.server->rrefs_.undo(result, parts_.from);
  if (result.has_graph() && parts_.agent->graph_hook() != nullptr) {
    parts_.agent->graph_hook()->outgoing_failed(parts_.from, result.graph());
  }
}

void ServedCall::finish(std::shared_ptr<void> value, const TypeOps* type) {
  if (!end()) return;
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
  response.set_call_id(request().call_id());
  std::vector<transport::Buffer> buffers;
  if (is_remote()) {
    parts_.server->rrefs_.set_value(from_proto(request().result_rref()),
                                    RRefService::Owned{std::move(value), type, nullptr});
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
                                  agent().self().name),
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
  LazyReferences references(parts_.server->rrefs_, /*is_answer=*/true);
  references.set_receiver(parts_.from);
  Encoder encoder(payload, &references);
  GRADWIRE_RETURN_IF_ERROR(type->encode(value.get(), encoder, *payload.add_values()));
  value.reset();
  std::unique_ptr<TensorSet> tensors = encoder.take_tensors();
  if (GraphHook* hook = parts_.agent->graph_hook()) {
    GRADWIRE_RETURN_IF_ERROR(hook->outgoing_answer(parts_.from, tensors.get(), payload));
  }
  if (tensors == nullptr) return absl::OkStatus();
  const TensorSharing sharing = is_repeatable() ? TensorSharing::kCapture : TensorSharing::kBorrow;
  return tensor_backend()->encode(*tensors, sharing, payload, buffers);
}

void ServedCall::fail(absl::Status status) {
  if (!end()) return;
  status = with_worker(std::move(status), agent().self().name);
  if (is_remote()) parts_.server->rrefs_.set_value(from_proto(request().result_rref()), status);
  proto::Envelope envelope;
  proto::Response& response = *envelope.mutable_response();
  response.set_call_id(request().call_id());
  status_to_proto(status, *response.mutable_status());
  answer(envelope, {});
}

void ServedCall::release_arguments() {
  arguments_.tensors = nullptr;
  arguments_.references.clear();
}

}  // namespace gradwire::rpc
