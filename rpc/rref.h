#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gradwire/base/future.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/callee/type_ops.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/rref/rref_backward.h"
#include "gradwire/rpc/rref/service.h"

namespace gradwire::rpc {

// A reference to a value of type T that lives on one worker, its owner. Copyable, thread-safe, sendable as an
// argument or a result at any depth. The value lives as long as any reference to it, anywhere. Include
// "rpc/rpc.h" to use it.
//
// Everything that waits or calls throws Error: Unavailable when the owner is dead, the creation's own error
// when the value could not be made, DeadlineExceeded, FailedPrecondition when the agent has been shut down.
template <class T>
class RRef {
 public:
  // Refers to nothing; only assignment and destruction are of use.
  RRef() = default;
  // A value that the current agent owns.
  explicit RRef(T value)
      : RRef(Agent::current()->rrefs().own(std::make_shared<T>(std::move(value)), type_ops<T>())) {}
  // For values that exist already, on `agent`.
  RRef(Agent& agent, std::shared_ptr<T> value) : RRef(agent.rrefs().own(std::move(value), type_ops<T>())) {}
  // For decoding: shares the reference that `handle` stands for.
  explicit RRef(std::shared_ptr<RRefHandle> handle) : handle_(std::move(handle)) {}

  // Whether the value lives on the worker of this reference's agent. No call.
  bool is_owner() const { return handle_->is_owner(); }
  // The worker that the value lives on. No call.
  WorkerInfo owner() const { return handle_->owner().info(); }
  // The owner's name. No call.
  std::string owner_name() const { return handle_->owner().name; }
  // Whether the owner is known to have this reference in its table; true on the owner.
  bool confirmed_by_owner() const {
    return handle_->confirmed().done() && handle_->confirmed().result().ok();
  }
  // Done when the owner has this reference in its table; its error is the reason why it never will.
  Future<void> confirmed() const { return handle_->confirmed(); }

  // A copy of the value, here. On the owner nothing is encoded; elsewhere T must be sendable.
  T to_here() const { return to_here_async().wait(); }
  // As to_here(), for at most `timeout` (infinite: until the owner is lost).
  T to_here(absl::Duration timeout) const { return with_timeout(timeout).to_here(); }
  // As to_here() without waiting. Errors come out of the future; throws FailedPrecondition for an RRef
  // that refers to nothing, and after the agent's shutdown.
  Future<T> to_here_async() const;

  // The value itself. FailedPrecondition anywhere but on the owner. Waits until the value has been made. The
  // reference stays good while an RRef to the value does.
  T& local_value() const;

  // Methods of the referenced object: rref.rpc_sync<&ParameterServer::push>(gradient).
  template <auto F, class... A>
  auto rpc_sync(A&&... arguments) const;
  // As rpc_sync without waiting; see rpc::rpc_async.
  template <auto F, class... A>
  auto rpc_async(A&&... arguments) const;
  // As rpc_async, but that the result stays at the owner; see rpc::remote.
  template <auto F, class... A>
  auto remote(A&&... arguments) const;

  // Operators and TorchScript functions with the value as their first argument:
  // rref.rpc_sync<at::Tensor>(Op("aten::view"), shape).
  template <class R, class C, class... A>
  R rpc_sync(const C& callee, A&&... arguments) const;
  // As rpc_sync without waiting.
  template <class R, class C, class... A>
  Future<R> rpc_async(const C& callee, A&&... arguments) const;
  // As rpc_async, but that the result stays at the owner.
  template <class R, class C, class... A>
  RRef<R> remote(const C& callee, A&&... arguments) const;

  // The same reference, with calls through it that take at most `timeout` (Destination::with_timeout).
  RRef with_timeout(absl::Duration timeout) const {
    RRef copy = *this;
    copy.timeout_ = timeout;
    return copy;
  }

  // Of a tensor alone: the backward pass from the value, run by its owner, in an autograd context (the object or its
  // id). FailedPrecondition in a program without //autograd; else the errors of autograd::backward.
  template <class C>
  void backward(const C& context, bool retain_graph = false) const {
    if (rref_backward() == nullptr) {
      throw Error(absl::FailedPreconditionError("RRef::backward needs //autograd, which is not linked in"));
    }
    rref_backward()(*this, autograd_context_id(context), retain_graph);
  }

  // For encoding: what all copies share. nullptr for an RRef that refers to nothing.
  const std::shared_ptr<RRefHandle>& handle() const { return handle_; }

 private:
  std::shared_ptr<Agent> agent_or_throw() const {
    std::shared_ptr<RRefService> service = handle_ == nullptr ? nullptr : handle_->service();
    std::shared_ptr<Agent> agent = service == nullptr ? nullptr : service->agent();
    if (agent == nullptr) {
      throw Error(absl::FailedPreconditionError(handle_ == nullptr ? "the RRef is empty"
                                                                   : "the RRef's agent has been shut down"));
    }
    return agent;
  }
  Destination destination() const {
    Destination to = Destination::incarnation_of(handle_->owner());
    return timeout_ ? to.with_timeout(*timeout_) : to;
  }

  // When a wait for the value ends, on Clock::system(): as a call's deadline.
  absl::Time deadline(const Agent& agent) const { return agent.call_deadline(timeout_); }

  std::shared_ptr<RRefHandle> handle_;
  std::optional<absl::Duration> timeout_;
};

template <class T>
T& RRef<T>::local_value() const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  if (!is_owner()) {
    throw Error(absl::FailedPreconditionError(absl::StrCat("local_value on worker \"", agent->self().name,
                                                           "\" of an RRef that \"", owner_name(),
                                                           "\" owns: use "
                                                           "to_here, or call a method of it")));
  }
  Promise<std::shared_ptr<T>> promise(agent->executor());
  agent->rrefs().find(handle_->rref(), deadline(*agent), [promise](absl::StatusOr<RRefService::Owned> owned) {
    promise.set_result(owned.ok() ? owned->template as<T>() : owned.status());
  });
  return *promise.future().wait();
}

// An RRef travels as a reference; the receiver becomes one more holder of the value.
template <class T>
struct Codec<RRef<T>> {
  // "RRef[T]", as it stands in signatures.
  static std::string type_name() { return absl::StrCat("RRef[", value_type_name<T>(), "]"); }
  // Adds the reference to the message. Errors: those of Encoder::add_reference.
  static absl::Status encode(const RRef<T>& value, Encoder& encoder, proto::Value& out) {
    GRADWIRE_ASSIGN_OR_RETURN(uint32_t index, encoder.add_reference(value.handle()));
    out.set_reference(index);
    return absl::OkStatus();
  }
  // InvalidArgument where the message holds something else, or a reference to another type.
  static absl::StatusOr<RRef<T>> decode(const proto::Value& in, Decoder& decoder) {
    if (in.kind_case() != proto::Value::kReference) return wrong_kind(type_name(), in);
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<RRefHandle> handle, decoder.reference(in.reference()));
    if (handle->type() != value_type_name<T>()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected an RRef to a ", value_type_name<T>(), ", got one to a ", handle->type()));
    }
    return RRef<T>(std::move(handle));
  }
};

}  // namespace gradwire::rpc
