#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/codec.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/registry/type_ops.h"
#include "gradwire/rpc/rref/handle.h"

namespace at {
class Tensor;
}

namespace gradwire::rpc {

template <class T>
class RRef;

// The function of the layer //autograd that RRef::backward() calls.
using RRefBackward = void (*)(const RRef<at::Tensor>& reference, int64_t context, bool retain_graph);
// Called by //autograd during static initialisation.
void set_rref_backward(RRefBackward backward);

namespace rref_internal {

// Throws FailedPrecondition in a program without //autograd.
RRefBackward rref_backward();

template <class C>
int64_t context_id(const C& context) {
  if constexpr (std::integral<C>) {
    return static_cast<int64_t>(context);
  } else {
    return context.id();
  }
}

// Makes `agent` the owner of the value, and returns a handle on it.
std::shared_ptr<RRefHandle> own(Agent& agent, std::shared_ptr<void> value, const TypeOps* type);
// Calls `found` with the value behind `handle` once the value exists: at once, or later on the thread that
// makes it. `agent` owns the value. Fails with DeadlineExceeded after `timeout`, or after the agent's
// rpc_timeout without one. Returns the number of the wait for cancel_find().
uint64_t find(Agent& agent, const RRefHandle& handle, const std::optional<absl::Duration>& timeout,
              absl::AnyInvocable<void(absl::StatusOr<OwnedValue>)> found);
// Ends a wait for `rref` with Cancelled, unless it has ended.
void cancel_find(const std::weak_ptr<Agent>& agent, const Id& rref, uint64_t wait);
// The end of the uses of the value so far; nullptr if it was made without an accelerator.
StreamFencePtr uses_of(const OwnedValue& owned);
// The agent of a handle. Throws FailedPrecondition for nullptr, and when the agent has been shut down.
std::shared_ptr<Agent> agent_of(const RRefHandle* handle);
// Passes the value on. InvalidArgument when it has another type than the reference said.
absl::StatusOr<OwnedValue> of_type(const std::type_info& type, absl::StatusOr<OwnedValue> owned);
// Returns the value behind `handle`, of any type if `type` is nullptr, after waiting until it has been made,
// as find() does. Orders the device work of this thread after the earlier uses of the value. Throws
// FailedPrecondition on a worker that does not own the value.
OwnedValue local_value(const RRefHandle* handle, const std::optional<absl::Duration>& timeout,
                       const std::type_info* type);
// Adds the reference to the message. Errors: those of Encoder::add_reference.
absl::Status encode(const std::shared_ptr<RRefHandle>& handle, Encoder& encoder, proto::Value& out);
// InvalidArgument when the message contains another kind of value. `type`: that of the expected reference.
absl::StatusOr<std::shared_ptr<RRefHandle>> decode(const proto::Value& in, Decoder& decoder,
                                                   absl::string_view type);
// InvalidArgument for a reference to another type.
absl::Status check_type(const RRefHandle& handle, absl::string_view type);

}  // namespace rref_internal

// A reference to a value of type T that lives on one worker, its owner. Copyable and thread-safe. It can be
// sent as an argument or a result, at any depth. The value lives as long as any worker holds a reference to
// it. Include "gradwire/rpc/rpc.h" to use it.
//
// Methods that wait or call throw Error: Unavailable when the owner is dead; the error of the creating call
// when the value could not be made; DeadlineExceeded; FailedPrecondition when the agent has been shut down.
template <class T>
class RRef {
 public:
  // Refers to nothing. Only assignment and destruction are allowed.
  RRef() = default;
  // Makes the current agent the owner of `value`.
  explicit RRef(T value) : RRef(*Agent::current(), std::make_shared<T>(std::move(value))) {}
  // Makes the current agent the owner of a value that exists already, for example a module of this process.
  // Throws InvalidArgument for nullptr.
  explicit RRef(std::shared_ptr<T> value) : RRef(*Agent::current(), std::move(value)) {}
  // As above, with `agent` as the owner.
  RRef(Agent& agent, std::shared_ptr<T> value)
      : RRef(rref_internal::own(agent, std::move(value), type_ops<T>())) {}
  // For decoding: shares the reference of `handle`.
  explicit RRef(std::shared_ptr<RRefHandle> handle) : handle_(std::move(handle)) {}

  // Whether the worker of this reference's agent owns the value. Makes no call.
  bool is_owner() const { return handle_->is_owner(); }
  // The worker that owns the value. Makes no call.
  WorkerInfo owner() const { return handle_->owner().info(); }
  // The owner's name. Makes no call.
  std::string owner_name() const { return handle_->owner().name; }
  // Whether the owner has confirmed that this reference is in its table. Always true on the owner.
  bool confirmed_by_owner() const {
    return handle_->confirmed().done() && handle_->confirmed().result().ok();
  }
  // Completes when the owner has confirmed this reference. Fails with the reason why it cannot be confirmed.
  Future<void> confirmed() const { return handle_->confirmed(); }

  // Returns a copy of the value. On the owner the value is copied without encoding; elsewhere T needs a
  // Codec.
  T to_here() const { return to_here_async().wait(); }
  // As to_here(), for at most `timeout` (infinite: until the owner is lost).
  T to_here(absl::Duration timeout) const { return with_timeout(timeout).to_here(); }
  // As to_here() without waiting. The future reports errors. Throws FailedPrecondition for an RRef that
  // refers to nothing, and after the agent's shutdown.
  Future<T> to_here_async() const;

  // Returns the value itself, after waiting until it has been made. Throws FailedPrecondition on a worker
  // that is not the owner. The returned reference is valid as long as an RRef to the value exists.
  T& local_value() const;

  // Calls a method of the referenced object: rref.rpc_sync<&ParameterServer::push>(gradient).
  template <auto F, class... A>
  auto rpc_sync(A&&... arguments) const;
  // As rpc_sync without waiting; see rpc::rpc_async.
  template <auto F, class... A>
  auto rpc_async(A&&... arguments) const;
  // As rpc_async, but the result stays on the owner; see rpc::remote.
  template <auto F, class... A>
  auto remote(A&&... arguments) const;

  // Calls an operator or a TorchScript function with the value as its first argument:
  // rref.rpc_sync<at::Tensor>(Op("aten::view"), shape).
  template <class R, class C, class... A>
  R rpc_sync(const C& callee, A&&... arguments) const;
  // As rpc_sync without waiting.
  template <class R, class C, class... A>
  Future<R> rpc_async(const C& callee, A&&... arguments) const;
  // As rpc_async, but the result stays on the owner.
  template <class R, class C, class... A>
  RRef<R> remote(const C& callee, A&&... arguments) const;

  // Returns a copy of this reference whose calls take at most `timeout` (Destination::with_timeout).
  RRef with_timeout(absl::Duration timeout) const {
    RRef copy = *this;
    copy.timeout_ = timeout;
    return copy;
  }

  // Runs the backward pass from the value, which must be a tensor, in an autograd context (the object or its
  // id). The owner runs it. Throws FailedPrecondition in a program without //autograd, and the errors of
  // autograd::backward.
  template <class C>
  void backward(const C& context, bool retain_graph = false) const {
    rref_internal::rref_backward()(*this, rref_internal::context_id(context), retain_graph);
  }

  // For encoding: the handle that all copies share. nullptr for an RRef that refers to nothing.
  const std::shared_ptr<RRefHandle>& handle() const { return handle_; }
  // For calls: the owner, with the timeout of this reference.
  Destination destination() const {
    Destination to = Destination::incarnation_of(handle_->owner());
    return timeout_ ? to.with_timeout(*timeout_) : to;
  }

 private:
  std::shared_ptr<Agent> agent_or_throw() const { return rref_internal::agent_of(handle_.get()); }

  std::shared_ptr<RRefHandle> handle_;
  std::optional<absl::Duration> timeout_;
};

template <class T>
T& RRef<T>::local_value() const {
  return *static_cast<T*>(rref_internal::local_value(handle_.get(), timeout_, &typeid(T)).value.get());
}

// Sends an RRef as a reference. The receiver becomes one more holder of the value.
template <class T>
struct Codec<RRef<T>> {
  // "RRef[T]", as in signatures.
  static std::string type_name() { return absl::StrCat("RRef[", value_type_name<T>(), "]"); }
  // Adds the reference to the message. Errors: those of Encoder::add_reference.
  static absl::Status encode(const RRef<T>& value, Encoder& encoder, proto::Value& out) {
    return rref_internal::encode(value.handle(), encoder, out);
  }
  // InvalidArgument when the message contains another kind of value, or a reference to another type.
  static absl::StatusOr<RRef<T>> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<RRefHandle> handle,
                              rref_internal::decode(in, decoder, value_type_name<T>()));
    GRADWIRE_RETURN_IF_ERROR(rref_internal::check_type(*handle, value_type_name<T>()));
    return RRef<T>(std::move(handle));
  }
};

}  // namespace gradwire::rpc
