#include "gradwire/rpc/calls/rref.h"

#include "gradwire/base/error.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/order/stream_order.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {
namespace {

// Installed by //autograd. nullptr in a program that is linked without it.
constinit RRefBackward installed_backward = nullptr;

}  // namespace

void set_rref_backward(RRefBackward backward) { installed_backward = backward; }

namespace rref_internal {

RRefBackward rref_backward() {
  if (installed_backward == nullptr) {
    throw Error(
        absl::FailedPreconditionError("RRef::backward needs //autograd: add it to the deps of the program"));
  }
  return installed_backward;
}

std::shared_ptr<RRefHandle> own(Agent& agent, std::shared_ptr<void> value, const TypeOps* type) {
  if (value == nullptr) {
    throw Error(absl::InvalidArgumentError(
        "an RRef needs a value: got nullptr, expected a pointer to an object; RRef() refers to nothing"));
  }
  return agent.rrefs().own(std::move(value), type);
}

uint64_t find(Agent& agent, const RRefHandle& handle, const std::optional<absl::Duration>& timeout,
              absl::AnyInvocable<void(absl::StatusOr<OwnedValue>)> found) {
  return agent.rrefs().values().find(handle.rref(), agent.services().call_deadline(timeout),
                                     std::move(found));
}

void cancel_find(const std::weak_ptr<Agent>& agent, const Id& rref, uint64_t wait) {
  if (const std::shared_ptr<Agent> alive = agent.lock())
    alive->rrefs().values().give_up(rref, wait, absl::CancelledError("cancelled by the caller"));
}

StreamFencePtr uses_of(const OwnedValue& owned) {
  return owned.order == nullptr ? nullptr : owned.order->fence();
}

std::shared_ptr<Agent> agent_of(const RRefHandle* handle) {
  std::shared_ptr<Agent> agent = handle == nullptr ? nullptr : handle->agent();
  if (agent == nullptr) {
    throw Error(absl::FailedPreconditionError(handle == nullptr ? "the RRef is empty"
                                                                : "the RRef's agent has been shut down"));
  }
  return agent;
}

absl::StatusOr<OwnedValue> of_type(const std::type_info& type, absl::StatusOr<OwnedValue> owned) {
  if (!owned.ok() || owned->type->id() == type) return owned;
  return absl::InvalidArgumentError(absl::StrCat("the value behind the RRef is a ", owned->type->name()));
}

OwnedValue local_value(const RRefHandle* handle, const std::optional<absl::Duration>& timeout,
                       const std::type_info* type) {
  const std::shared_ptr<Agent> agent = agent_of(handle);
  if (!handle->is_owner()) {
    throw Error(absl::FailedPreconditionError(
        absl::StrCat("cannot use local_value on worker \"", agent->get_worker_info().name, "\": worker \"",
                     handle->owner().name, "\" owns the RRef; use to_here, or call a method of the RRef")));
  }
  Promise<OwnedValue> promise(agent->executor());
  const uint64_t wait = find(*agent, *handle, timeout, [promise, type](absl::StatusOr<OwnedValue> owned) {
    promise.set_result(type == nullptr ? std::move(owned) : of_type(*type, std::move(owned)), nullptr);
  });
  absl::StatusOr<OwnedValue> owned = promise.future().result();
  // The thread may have been refused the wait (ThreadPool). Then the value is still awaited for it.
  if (!owned.ok()) cancel_find(agent, handle->rref(), wait);
  OwnedValue value = value_or_throw(std::move(owned));
  if (value.order != nullptr) value.order->wait();
  return value;
}

absl::Status encode(const std::shared_ptr<RRefHandle>& handle, Encoder& encoder, proto::Value& out) {
  GRADWIRE_ASSIGN_OR_RETURN(uint32_t index, encoder.add_reference(handle));
  out.set_reference(index);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RRefHandle>> decode(const proto::Value& in, Decoder& decoder,
                                                   absl::string_view type) {
  if (in.kind_case() != proto::Value::kReference) return wrong_kind(absl::StrCat("RRef[", type, "]"), in);
  return decoder.reference(in.reference());
}

absl::Status check_type(const RRefHandle& handle, absl::string_view type) {
  if (handle.type() == type) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected an RRef to a ", type, ", got one to a ", handle.type()));
}

}  // namespace rref_internal
}  // namespace gradwire::rpc
