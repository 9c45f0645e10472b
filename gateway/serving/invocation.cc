#include "gradwire/gateway/serving/invocation.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/gateway/values/convert.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/rpc/caller/caller.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/rref/service.h"
#include "gradwire/rpc/streams/stream_batch.h"

namespace gradwire::gateway {
namespace {

// A request up to this size is encoded on the thread of gRPC.
constexpr std::size_t kInlineRequest = std::size_t{64} << 10;

// Whether the worker serves the callee. Operators of a named worker are not looked up: it checks them itself.
const ServedCallee* find_callee(const ServedCallees& callees, v1::FunctionKind kind,
                                const std::string& name) {
  if (kind != v1::FUNCTION_KIND_OPERATOR) return callees.find(kind, name);
  return callees.find(kind, name.substr(0, name.find('.')));
}

}  // namespace

// Adds the arguments of a client to a request.
class Invocation::Arguments final : public ArgumentSink {
 public:
  Arguments(Invocation& invocation, rpc::OutgoingCall& call) : invocation_(invocation), call_(call) {}

  absl::StatusOr<uint32_t> add_tensor(v1::Tensor& tensor) override {
    TensorBridge* const bridge = tensor_bridge();
    if (bridge == nullptr) return no_tensor_bridge();
    GRADWIRE_ASSIGN_OR_RETURN(uint64_t size, checked_bytes(tensor));
    TensorBytes bytes;
    bytes.dtype = tensor.dtype();
    bytes.shape.assign(tensor.shape().begin(), tensor.shape().end());
    if (tensor.chunked()) {
      const auto found = invocation_.input_->uploaded.find(&tensor);
      if (found == invocation_.input_->uploaded.end()) {
        return absl::InvalidArgumentError("a chunked tensor in a call without chunks: use CallChunked");
      }
      bytes.bytes = std::move(found->second);
    } else if (size > 0) {
      GRADWIRE_RETURN_IF_ERROR(invocation_.input_->permit.add_bytes(size));
      GRADWIRE_ASSIGN_OR_RETURN(bytes.bytes, bridge->allocate(size));
      std::memcpy(bytes.bytes.data(), tensor.data().data(), size);
    }
    if (tensor.dtype() == v1::DTYPE_BOOL) {
      GRADWIRE_RETURN_IF_ERROR(rpc::check_bools(bytes.bytes.data(), size));
    }
    return bridge->add(std::move(bytes), call_.encoder());
  }

  absl::StatusOr<uint32_t> add_handle(const std::string& id, const std::string& type) override {
    if (!invocation_.session_)
      return absl::FailedPreconditionError("a handle needs the session that it belongs to");
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<rpc::RRefHandle> handle, invocation_.session_->find(id));
    if (!type.empty() && handle->type() != type) {
      return absl::InvalidArgumentError(
          absl::StrCat("got a handle of a ", printable(handle->type()), ", expected one of a ", type));
    }
    return call_.encoder().add_reference(handle);
  }

 private:
  Invocation& invocation_;
  rpc::OutgoingCall& call_;
};

Invocation::Invocation(std::shared_ptr<Core> core, std::unique_ptr<Input> input, Done done)
    : core_(std::move(core)), input_(std::move(input)), done_(std::move(done)) {}

v1::FunctionKind Invocation::kind() const {
  switch (input_->request.callee_case()) {
    case v1::CallRequest::kFunction:
      return v1::FUNCTION_KIND_FUNCTION;
    case v1::CallRequest::kConstructor:
      return v1::FUNCTION_KIND_CONSTRUCTOR;
    case v1::CallRequest::kMethod:
      return v1::FUNCTION_KIND_METHOD;
    case v1::CallRequest::kOperator:
      return v1::FUNCTION_KIND_OPERATOR;
    case v1::CallRequest::kFetch:
    case v1::CallRequest::CALLEE_NOT_SET:
      break;
  }
  return v1::FUNCTION_KIND_UNSPECIFIED;
}

const std::string& Invocation::name() const {
  static const std::string* const fetch = new std::string("fetch");
  switch (kind()) {
    case v1::FUNCTION_KIND_FUNCTION:
      return input_->request.function();
    case v1::FUNCTION_KIND_CONSTRUCTOR:
      return input_->request.constructor();
    case v1::FUNCTION_KIND_METHOD:
      return input_->request.method().name();
    case v1::FUNCTION_KIND_OPERATOR:
      return input_->request.operator_();
    default:
      return *fetch;
  }
}

void Invocation::start() {
  detail_.set_callee(name());
  if (absl::Status status = begin(); !status.ok()) fail(std::move(status));
}

// Step 1, and the choice of the worker if it is known. On success the call proceeds on its own.
absl::Status Invocation::begin() {
  v1::CallRequest& request = input_->request;
  if (request.callee_case() == v1::CallRequest::CALLEE_NOT_SET) {
    return absl::InvalidArgumentError(
        "the request names no callee: set function, constructor, method, operator or fetch");
  }
  if (kind() == v1::FUNCTION_KIND_OPERATOR) {
    GRADWIRE_RETURN_IF_ERROR(core_->access.check_operator(name()));
  } else if (kind() != v1::FUNCTION_KIND_UNSPECIFIED) {
    GRADWIRE_RETURN_IF_ERROR(core_->access.check_callee(name()));
    if (request.keywords_size() > 0) {
      return absl::InvalidArgumentError("keyword arguments are for operators only");
    }
  } else if (request.arguments_size() > 0 || request.keywords_size() > 0 || request.keep_result()) {
    return absl::InvalidArgumentError("a fetch has no arguments, and does not keep its result on the worker");
  }
  const bool callable = kind() == v1::FUNCTION_KIND_FUNCTION || kind() == v1::FUNCTION_KIND_METHOD;
  if (input_->form == CallForm::kStream && (!callable || request.keep_result())) {
    return absl::InvalidArgumentError(
        "CallStream calls functions and methods that return a stream, and does not keep their results on the "
        "worker");
  }
  if (!request.session().empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(session_, core_->sessions.use(request.session()));
  }
  const bool keeps = request.keep_result() || kind() == v1::FUNCTION_KIND_CONSTRUCTOR;
  const bool by_handle = kind() == v1::FUNCTION_KIND_METHOD || kind() == v1::FUNCTION_KIND_UNSPECIFIED ||
                         (kind() == v1::FUNCTION_KIND_OPERATOR && request.arguments_size() > 0 &&
                          request.arguments(0).has_handle());
  if ((keeps || by_handle) && !session_) {
    return absl::FailedPreconditionError(
        "this call uses or makes a handle, which needs a session: open one with OpenSession, and set "
        "`session`");
  }
  if (keeps) GRADWIRE_RETURN_IF_ERROR(session_->has_room());
  rpc::AgentServices& services = core_->agent->services();
  if (by_handle) {
    const std::string& id = kind() == v1::FUNCTION_KIND_METHOD        ? request.method().object()
                            : kind() == v1::FUNCTION_KIND_UNSPECIFIED ? request.fetch()
                                                                      : request.arguments(0).handle().id();
    GRADWIRE_ASSIGN_OR_RETURN(target_, session_->find(id));
    if (!request.worker().empty() && request.worker() != target_->owner().name) {
      return absl::InvalidArgumentError(absl::StrCat("the value is on worker \"", target_->owner().name,
                                                     "\", not on \"", request.worker(), "\""));
    }
    if (kind() == v1::FUNCTION_KIND_METHOD) {
      const rpc::Worker owner = target_->owner();
      core_->directory->get(owner,
                            [self = shared_from_this(), owner](const CalleeDirectory::Answer& callees) {
                              self->found_callees(owner, callees);
                            });
    } else {
      post_send(target_->owner(), nullptr);
    }
    return absl::OkStatus();
  }
  if (request.worker().empty()) {
    for (const rpc::WorkerInfo& info : core_->agent->get_worker_infos()) {
      absl::StatusOr<rpc::Worker> worker = services.find_worker(rpc::Destination(info));
      if (worker.ok() && services.worker_status(*worker).ok()) candidates_.push_back(*std::move(worker));
    }
    if (candidates_.empty()) return absl::UnavailableError("no worker of the job is alive");
    std::rotate(candidates_.begin(), candidates_.begin() + core_->turn.fetch_add(1) % candidates_.size(),
                candidates_.end());
    try_next_worker();
    return absl::OkStatus();
  }
  GRADWIRE_ASSIGN_OR_RETURN(rpc::Worker worker, services.find_worker(rpc::Destination(request.worker())));
  GRADWIRE_RETURN_IF_ERROR(with_worker(services.worker_status(worker), worker.name));
  if (kind() == v1::FUNCTION_KIND_OPERATOR) {
    post_send(worker, nullptr);
    return absl::OkStatus();
  }
  core_->directory->get(worker, [self = shared_from_this(), worker](const CalleeDirectory::Answer& callees) {
    self->found_callees(worker, callees);
  });
  return absl::OkStatus();
}

// Workers that have been asked before are tried in this loop, without recursion.
void Invocation::try_next_worker() {
  while (next_candidate_ < candidates_.size()) {
    const rpc::Worker worker = candidates_[next_candidate_];
    const std::shared_ptr<const ServedCallees> known = core_->directory->cached(worker);
    if (known == nullptr) {
      core_->directory->get(worker, [self = shared_from_this()](const CalleeDirectory::Answer& callees) {
        // If the worker did not answer, go on with the next one. Otherwise its callees are known now.
        if (!callees.ok()) {
          self->unreachable_.Update(callees.status());
          ++self->next_candidate_;
        }
        self->try_next_worker();
      });
      return;
    }
    ++next_candidate_;
    if (const ServedCallee* callee = find_callee(*known, kind(), name())) {
      post_send(worker, callee, known);
      return;
    }
  }
  fail(unreachable_.ok() ? absl::NotFoundError(absl::StrCat("no worker serves \"", printable(name()),
                                                            "\": ListFunctions returns what they serve"))
                         : with_context(unreachable_, "no worker that answers serves it"));
}

void Invocation::found_callees(const rpc::Worker& worker, const CalleeDirectory::Answer& callees) {
  if (!callees.ok()) {
    fail(with_context(callees.status(),
                      absl::StrCat("asking worker \"", worker.name, "\" for its functions")));
    return;
  }
  const ServedCallee* callee = find_callee(**callees, kind(), name());
  if (callee == nullptr) {
    fail(with_worker(
        absl::NotFoundError(absl::StrCat("\"", printable(name()), "\" is not registered on worker \"",
                                         worker.name, "\": ListFunctions returns what it serves")),
        worker.name));
    return;
  }
  post_send(worker, callee, *callees);
}

// Connecting, a full flow window, and large arguments take time. The threads of the executor may spend it,
// those of gRPC should not. Without them a hand-over to another thread would be most of the gateway's own
// time.
void Invocation::post_send(const rpc::Worker& worker, const ServedCallee* callee,
                           std::shared_ptr<const ServedCallees> keep) {
  const std::size_t size = input_->request.ByteSizeLong();
  if (size <= kInlineRequest && input_->uploaded.empty() &&
      rpc::sends_at_once(core_->agent->caller(), worker, size)) {
    send(worker, callee);
    return;
  }
  rpc::Worker to = worker;
  const bool posted = core_->agent->executor()->post_clean(
      Executor::Task([self = shared_from_this(), to = std::move(to), callee, keep = std::move(keep)] {
        self->send(to, callee);
      }));
  if (!posted) fail(absl::UnavailableError("the gateway's worker shuts down"));
}

void Invocation::send(const rpc::Worker& worker, const ServedCallee* callee) {
  {
    MutexLock lock(mutex_);
    // cancel() has called `done`.
    if (cancelled_) return;
  }
  worker_ = printable(worker.name);
  const rpc::TraceScope scope(input_->trace);
  rpc::OutgoingCall call(
      core_->agent->caller(),
      rpc::Destination::incarnation_of(worker).with_timeout(input_->deadline - Clock::system().now()),
      printable(name()));
  absl::Status status = call.status();
  if (status.ok()) status = fill(call, callee);
  if (!status.ok()) {
    fail(std::move(status));
    return;
  }
  const bool stays = input_->request.keep_result() || kind() == v1::FUNCTION_KIND_CONSTRUCTOR ||
                     input_->form == CallForm::kStream;
  if (stays) {
    // The type of the value as its owner names it. The result of an operator is a tensor in almost all cases.
    send_remote(call, kind() == v1::FUNCTION_KIND_CONSTRUCTOR     ? callee->object_type
                      : callee == nullptr || callee->text.empty() ? "Tensor"
                                                                  : callee->signature.result.name);
    return;
  }
  sent(call.send([self = shared_from_this()](absl::StatusOr<rpc::IncomingPayload> in) {
    self->answered(std::move(in));
  }));
}

absl::Status Invocation::fill(rpc::OutgoingCall& call, const ServedCallee* callee) {
  proto::Request& request = call.request();
  if (target_ != nullptr) rpc::to_proto(target_->rref(), *request.mutable_target());
  switch (kind()) {
    case v1::FUNCTION_KIND_FUNCTION:
      request.set_function(name());
      break;
    case v1::FUNCTION_KIND_METHOD:
      request.set_method(name());
      break;
    case v1::FUNCTION_KIND_CONSTRUCTOR:
      request.set_constructor(name());
      break;
    case v1::FUNCTION_KIND_OPERATOR:
      request.set_operator_(name());
      result_type_ = any_type();
      break;
    default: {
      request.set_fetch(true);
      absl::StatusOr<Type> type = parse_type(target_->type());
      result_type_ = type.ok() ? *std::move(type) : any_type();
      return absl::OkStatus();
    }
  }
  if (callee != nullptr && !callee->text.empty()) {
    result_type_ = callee->signature.result;
    GRADWIRE_RETURN_IF_ERROR(check_form());
    if (kind() != v1::FUNCTION_KIND_CONSTRUCTOR) request.set_signature(callee->hash);
    if (callee->idempotent) call.set_idempotent();
  }
  return add_arguments(call, callee);
}

// A stream is read by CallStream, and nothing else is.
absl::Status Invocation::check_form() {
  const bool streams = input_->form == CallForm::kStream;
  const std::optional<std::string> item = rpc::stream_internal::stream_item(result_type_.name);
  if (!item) {
    if (!streams) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("\"", name(), "\" returns ", result_type_.name,
                                                   ", not a stream: use Call or CallChunked"));
  }
  if (!streams) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name(), "\" returns a stream: use CallStream"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(item_type_, parse_type(*item));
  return absl::OkStatus();
}

absl::Status Invocation::add_arguments(rpc::OutgoingCall& call, const ServedCallee* callee) {
  v1::CallRequest& from = input_->request;
  proto::Payload& to = *call.request().mutable_arguments();
  Arguments sink(*this, call);
  Mismatch mismatch;
  const bool typed = callee != nullptr && !callee->text.empty();
  if (typed && from.arguments_size() != static_cast<int>(callee->signature.parameters.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wrong number of arguments of \"", name(), "\": got ", from.arguments_size(), ", expected ",
        callee->signature.parameters.size(), " for the signature ", callee->text));
  }
  // The value of a handle that comes first is the target already.
  const int first = target_ != nullptr && kind() == v1::FUNCTION_KIND_OPERATOR ? 1 : 0;
  for (int i = first; i < from.arguments_size(); ++i) {
    const Type& type = typed ? callee->signature.parameters[i] : any_type();
    absl::Status status = to_wire(*from.mutable_arguments(i), type, sink, *to.add_values(), mismatch);
    if (status.ok()) continue;
    detail_.set_argument(static_cast<uint32_t>(i + 1));
    detail_.set_wanted(mismatch.wanted);
    detail_.set_got(mismatch.got);
    return with_context(status, absl::StrCat("argument ", i + 1, " of \"", name(), "\""));
  }
  for (v1::Keyword& keyword : *from.mutable_keywords()) {
    proto::KeywordValue& value = *to.add_keywords();
    value.set_name(keyword.name());
    absl::Status status =
        to_wire(*keyword.mutable_value(), any_type(), sink, *value.mutable_value(), mismatch);
    if (status.ok()) continue;
    detail_.set_keyword(keyword.name());
    detail_.set_wanted(mismatch.wanted);
    detail_.set_got(mismatch.got);
    return with_context(status, absl::StrCat("argument \"", keyword.name(), "\" of \"", name(), "\""));
  }
  return absl::OkStatus();
}

// As Agent::remote, for a type that is known only by its name. The answer arrives when the value exists.
void Invocation::send_remote(rpc::OutgoingCall& call, std::string type) {
  Promise<void> created(core_->agent->executor());
  absl::StatusOr<rpc::RRefService::Remote> remote =
      core_->agent->rrefs().begin_remote(call.to(), type, created);
  if (!remote.ok()) {
    fail(remote.status());
    return;
  }
  rpc::to_proto(remote->handle->rref(), *call.request().mutable_result_rref());
  rpc::to_proto(remote->fork, *call.request().mutable_result_fork());
  sent(call.send(
      [self = shared_from_this(), remote = *remote, created](const absl::StatusOr<rpc::IncomingPayload>& in) {
        created.set_result(in.status());
        self->core_->agent->rrefs().end_remote(remote, in.status());
        if (!in.ok()) {
          self->fail(in.status());
          return;
        }
        Outcome outcome;
        if (self->input_->form == CallForm::kStream) {
          outcome.stream = {remote.handle, self->item_type_, std::move(self->session_),
                            std::move(self->input_->permit)};
        } else {
          outcome.status = keep_reference(self->session_.get(), remote.handle,
                                          *outcome.response.mutable_result()->mutable_handle());
        }
        self->finish(std::move(outcome));
      }));
}

// The call may have ended already, and the client may have cancelled it meanwhile.
void Invocation::sent(uint64_t id) {
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    call_id_ = id;
    cancelled = cancelled_;
  }
  if (cancelled)
    core_->agent->caller().cancel(id, absl::CancelledError("cancelled by the client of the gateway"));
}

void Invocation::cancel() {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (std::exchange(cancelled_, true)) return;
    id = call_id_;
  }
  if (id != 0)
    core_->agent->caller().cancel(id, absl::CancelledError("cancelled by the client of the gateway"));
  // The end does not wait for the worker. It uses no member that a step may be writing.
  Outcome outcome;
  outcome.status = absl::CancelledError("cancelled by the client");
  complete(std::move(outcome));
}

void Invocation::answered(absl::StatusOr<rpc::IncomingPayload> in) {
  Outcome outcome;
  outcome.status = in.ok() ? read(*in, outcome) : in.status();
  finish(std::move(outcome));
}

absl::Status Invocation::read(rpc::IncomingPayload& in, Outcome& outcome) {
  if (in.payload->values_size() != 1) {
    return absl::InvalidArgumentError("malformed answer: expected exactly one value");
  }
  const bool chunks = input_->form == CallForm::kChunked;
  ResultReader source(in, input_->permit, session_.get(), chunks ? &outcome.chunked : nullptr);
  return source.read(in.payload->values(0), result_type_, worker_, outcome.response);
}

void Invocation::fail(absl::Status status) {
  Outcome outcome;
  outcome.status = std::move(status);
  finish(std::move(outcome));
}

void Invocation::finish(Outcome outcome) {
  outcome.response.set_worker(worker_);
  if (!outcome.status.ok()) {
    outcome.detail = detail_;
    outcome.detail.set_worker(worker_of(outcome.status));
  }
  complete(std::move(outcome));
}

void Invocation::complete(Outcome outcome) {
  Done done;
  {
    MutexLock lock(mutex_);
    if (done_ == nullptr) return;
    done = std::exchange(done_, nullptr);
  }
  done(std::move(outcome));
}

}  // namespace gradwire::gateway
