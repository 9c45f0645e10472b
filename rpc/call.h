#pragma once

#include <utility>

#include "gradwire/rpc/caller/call_steps.h"

// The typed front of OutgoingCall: registered functions, classes and methods; and callees that are named
// at run time (Op, Script), whose headers supply
//   std::string callee_name(const C&);
//   template <class... A> void prepare_call(OutgoingCall&, const C&, A&&...);   // sets the callee, adds the
//   arguments
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
// torch.distributed.rpc.rpc_sync. Arguments convert as in a direct call. Large tensors travel from their own
// memory: no other thread may change them before it returns. Throws Error with the worker's name:
//   NotFound            no such worker, or F is not registered here or there
//   InvalidArgument     the signatures of F differ, or an argument or result cannot travel
//   DeadlineExceeded    no answer within the destination's timeout (else rpc_timeout) or the served call's
//   Unavailable         the worker cannot be reached or is dead, or the connection broke meanwhile
//   Aborted             another process has taken the worker's place
//   Cancelled           the callee shut down
//   FailedPrecondition  there is no agent, or it has been shut down
//   ResourceExhausted   a limit (security/limits.h) or the window (FlowOptions) was exceeded
//   Unknown             F threw; an Error keeps its own code
template <auto F, class... A>
auto rpc_sync(const Destination& to, A&&... arguments) {
  return Agent::current()->rpc_sync<F>(to, std::forward<A>(arguments)...);
}
// As rpc_sync without waiting: a Future of F's result, as torch.distributed.rpc.rpc_async. When it returns,
// the arguments' tensors may be changed. Blocks only for room in the window (FlowPolicy::kWait). Errors come
// out of the future; only FailedPrecondition, without an agent, is thrown. Continuations run on the agent's
// executor.
template <auto F, class... A>
auto rpc_async(const Destination& to, A&&... arguments) {
  return Agent::current()->rpc_async<F>(to, std::forward<A>(arguments)...);
}
// As rpc_async, but that the result stays on `to`: an RRef to it, at once, as torch.distributed.rpc.remote.
// Throws what is wrong before the call leaves; later errors come out of every use of the reference.
template <auto F, class... A>
auto remote(const Destination& to, A&&... arguments) {
  return Agent::current()->remote<F>(to, std::forward<A>(arguments)...);
}
// An object of the registered class T, made on `to` with the constructor's `arguments`. Errors as remote of a
// function.
template <class T, class... A, class C = DeclaredConstructor<T>>
RRef<T> remote(const Destination& to, A&&... arguments) {
  return call_internal::remote_value<T, C>(Agent::current(), to, std::forward<A>(arguments)...);
}
// rpc_sync of a callee that is named at run time (Op, Script), with the result as a T. Errors as rpc_sync's,
// and PermissionDenied for an operator that is not on the callee's list.
template <class T, class C, class... A>
T rpc_sync(const Destination& to, const C& callee, A&&... arguments) {
  return Agent::current()->rpc_sync<T>(to, callee, std::forward<A>(arguments)...);
}
// rpc_async of a callee that is named at run time. Errors come out of the future.
template <class T, class C, class... A>
Future<T> rpc_async(const Destination& to, const C& callee, A&&... arguments) {
  return Agent::current()->rpc_async<T>(to, callee, std::forward<A>(arguments)...);
}

// The methods of what an RRef refers to, and operators with it as their first argument.
template <class T>
template <auto F, class... A>
auto RRef<T>::rpc_async(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, true> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  return call_internal::start_on<typename decltype(call)::Result>(agent, call, handle_);
}

template <class T>
template <auto F, class... A>
auto RRef<T>::rpc_sync(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, true> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  return call_internal::wait_borrowed<typename decltype(call)::Result>(agent, call, handle_.get());
}

template <class T>
template <auto F, class... A>
auto RRef<T>::remote(A&&... arguments) const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  call_internal::FunctionCall<F, true> call(agent->caller(), destination(), std::forward<A>(arguments)...);
  call_internal::set_target(call, *handle_);
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
  call_internal::set_target(call, *handle_);
  return call_internal::start_remote<R>(agent, call, handle_);
}

template <class T>
Future<T> RRef<T>::to_here_async() const {
  std::shared_ptr<Agent> agent = agent_or_throw();
  if (is_owner()) {
    Promise<T> promise(agent->executor());
    rref_internal::find(*agent, *handle_, timeout_, [promise](absl::StatusOr<OwnedValue> owned) {
      absl::StatusOr<std::shared_ptr<T>> value = rref_internal::value_as<T>(owned);
      if (!value.ok()) {
        promise.set_error(value.status());
        return;
      }
      try {
        promise.set_value(std::as_const(**value));
      } catch (...) {
        promise.set_error(status_from_exception(std::current_exception()));
      }
    });
    return promise.future();
  }
  OutgoingCall call(agent->caller(), destination(), "to_here");
  call.request().set_fetch(true);
  return call_internal::start_on<T>(agent, call, handle_);
}

}  // namespace gradwire::rpc
