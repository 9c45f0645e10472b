#pragma once

#include <utility>

#include "gradwire/rpc/calls/call_steps.h"

// The templates that programs call: rpc_sync, rpc_async and remote. They make an OutgoingCall
// (rpc/caller/outgoing_call.h) of a registered function, class or method, or of a callee that is named at run
// time (Op, Script). The header of such a callee type C supplies
//   std::string callee_name(const C&);
//   // Sets the callee and adds the arguments.
//   template <class... A> void prepare_call(OutgoingCall&, const C&, A&&...);
namespace gradwire::rpc {

template <auto F, class... A>
auto Agent::rpc_async(const Destination& to, A&&... arguments) {
  call_internal::FunctionCall<F> call(caller(), to, std::forward<A>(arguments)...);
  return call_internal::start<typename decltype(call)::Result>(shared_from_this(), call);
}

template <auto F, class... A>
auto Agent::rpc_sync(const Destination& to, A&&... arguments) {
  call_internal::FunctionCall<F> call(caller(), to, std::forward<A>(arguments)...);
  return call_internal::wait_borrowed<typename decltype(call)::Result>(shared_from_this(), call);
}

template <auto F, class... A>
auto Agent::remote(const Destination& to, A&&... arguments) {
  call_internal::FunctionCall<F> call(caller(), to, std::forward<A>(arguments)...);
  return call_internal::start_remote<ValueOf<typename decltype(call)::Result>>(shared_from_this(), call);
}

template <class T, class... A, class C>
RRef<T> Agent::remote(const Destination& to, A&&... arguments) {
  return call_internal::remote_value<T, C>(shared_from_this(), to, std::forward<A>(arguments)...);
}

template <class T, class C, class... A>
Future<T> Agent::rpc_async(const Destination& to, const C& callee, A&&... arguments) {
  call_internal::NamedCall call(caller(), to, callee, std::forward<A>(arguments)...);
  return call_internal::start<T>(shared_from_this(), call);
}

template <class T, class C, class... A>
T Agent::rpc_sync(const Destination& to, const C& callee, A&&... arguments) {
  call_internal::NamedCall call(caller(), to, callee, std::forward<A>(arguments)...);
  return call_internal::wait_borrowed<T>(shared_from_this(), call);
}

// Calls the registered function F on the worker `to` and waits for its result, as
// torch.distributed.rpc.rpc_sync does. Arguments are converted as in a direct call. Large tensors are sent
// from their own memory: no other thread may change them before rpc_sync returns. Throws Error with the
// worker's name:
//   NotFound            the worker does not exist, or F is not registered in the caller or in the callee
//   InvalidArgument     the signatures of F differ, or an argument or the result cannot be sent
//   DeadlineExceeded    no answer within the timeout of the destination (by default rpc_timeout), or
//                       within the deadline of the call that this thread serves
//   Unavailable         the worker is dead, has left or cannot be reached, or the connection broke
//                       during the call
//   Aborted             another process has taken the worker's name, or the group has declared this
//                       worker dead
//   FailedPrecondition  this process has no agent, or the agent has been shut down
//   ResourceExhausted   a limit (security/limits.h) or the flow window (FlowOptions) was exceeded
//   Unknown             F threw an exception; an Error keeps its own code
template <auto F, class... A>
auto rpc_sync(const Destination& to, A&&... arguments) {
  return Agent::current()->rpc_sync<F>(to, std::forward<A>(arguments)...);
}
// As rpc_sync, but returns a Future of F's result at once, as torch.distributed.rpc.rpc_async does. The
// caller may change the arguments' tensors as soon as rpc_async returns. It blocks only while the flow window
// is full (FlowPolicy::kWait). The future reports errors; only FailedPrecondition, without an agent, is
// thrown. Continuations run on the agent's executor.
template <auto F, class... A>
auto rpc_async(const Destination& to, A&&... arguments) {
  return Agent::current()->rpc_async<F>(to, std::forward<A>(arguments)...);
}
// As rpc_async, but the result stays on `to`. Returns an RRef to it at once, as torch.distributed.rpc.remote
// does. Throws an error that is found before the call is sent; each use of the reference reports later
// errors.
template <auto F, class... A>
auto remote(const Destination& to, A&&... arguments) {
  return Agent::current()->remote<F>(to, std::forward<A>(arguments)...);
}
// Makes an object of the registered class T on `to`, with the constructor's `arguments`, and returns an RRef
// to it. Errors as remote of a function.
template <class T, class... A, class C = DeclaredConstructor<T>>
RRef<T> remote(const Destination& to, A&&... arguments) {
  return call_internal::remote_value<T, C>(Agent::current(), to, std::forward<A>(arguments)...);
}
// As rpc_sync, for a callee that is named at run time (Op, Script). Returns the result as a T. Errors as
// above, and PermissionDenied for an operator that is not on the callee's allow list.
template <class T, class C, class... A>
T rpc_sync(const Destination& to, const C& callee, A&&... arguments) {
  return Agent::current()->rpc_sync<T>(to, callee, std::forward<A>(arguments)...);
}
// As rpc_async, for a callee that is named at run time. The future reports errors.
template <class T, class C, class... A>
Future<T> rpc_async(const Destination& to, const C& callee, A&&... arguments) {
  return Agent::current()->rpc_async<T>(to, callee, std::forward<A>(arguments)...);
}

// Calls of methods of the object that an RRef refers to, and of operators that take it as first argument.
template <class T>
template <auto F, class... A>
auto RRef<T>::rpc_async(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, T> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  return call_internal::start_on<typename decltype(call)::Result>(agent, call, handle_);
}

template <class T>
template <auto F, class... A>
auto RRef<T>::rpc_sync(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, T> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  return call_internal::wait_borrowed<typename decltype(call)::Result>(agent, call, handle_.get());
}

template <class T>
template <auto F, class... A>
auto RRef<T>::remote(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, T> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  return call_internal::start_remote<ValueOf<typename decltype(call)::Result>>(agent, call, handle_);
}

template <class T>
template <class R, class C, class... A>
Future<R> RRef<T>::rpc_async(const C& callee, A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::NamedCall call(agent->caller(), destination(), callee, std::forward<A>(arguments)...);
  return call_internal::start_on<R>(agent, call, handle_);
}

template <class T>
template <class R, class C, class... A>
R RRef<T>::rpc_sync(const C& callee, A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::NamedCall call(agent->caller(), destination(), callee, std::forward<A>(arguments)...);
  return call_internal::wait_borrowed<R>(agent, call, handle_.get());
}

template <class T>
template <class R, class C, class... A>
RRef<R> RRef<T>::remote(const C& callee, A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::NamedCall call(agent->caller(), destination(), callee, std::forward<A>(arguments)...);
  return call_internal::start_remote<R>(agent, call, handle_);
}

template <class T>
Future<T> RRef<T>::to_here_async() const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  if (is_owner()) {
    Promise<T> promise(agent->executor());
    // The thread that finds the value may be on duty, and copying the value is code of the user.
    const uint64_t wait = rref_internal::find(
        *agent, *handle_, timeout_,
        [promise, executor = agent->executor()](absl::StatusOr<OwnedValue> found) mutable {
          executor->run_off_duty([promise = std::move(promise), found = std::move(found)]() mutable {
            const absl::StatusOr<OwnedValue> owned = rref_internal::of_type(typeid(T), std::move(found));
            if (!owned.ok()) {
              promise.set_error(owned.status());
              return;
            }
            try {
              T copy(*static_cast<const T*>(owned->value.get()));
              // The second fence keeps the memory of the copy for the streams of the user.
              StreamFencePtr fence = rref_internal::uses_of(*owned);
              if (fence != nullptr) fence = join_fences({std::move(fence), record_stream_fence_of(copy)});
              promise.set_result(typename Future<T>::Result(absl::in_place, std::move(copy)),
                                 std::move(fence));
            } catch (...) {
              promise.set_error(status_from_exception(std::current_exception()));
            }
          });
        });
    if (wait != 0) {
      promise.on_cancel([weak = agent->weak_from_this(), rref = handle_->rref(), wait] {
        rref_internal::cancel_find(weak, rref, wait);
      });
    }
    return promise.future();
  }
  OutgoingCall call(agent->caller(), destination(), "to_here");
  call.request().set_fetch(true);
  return call_internal::start_on<T>(agent, call, handle_);
}

}  // namespace gradwire::rpc
