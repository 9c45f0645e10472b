#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/function_traits.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/registry/argument_types.h"
#include "gradwire/rpc/registry/constructor.h"
#include "gradwire/rpc/registry/registration.h"

// The steps of every kind of call, for rpc/calls/call.h: set the callee, add the arguments, send, decode the
// answer.
namespace gradwire::rpc::call_internal {

// Cancels the call with this id: unless it has completed, it completes with `reason`, and the callee receives
// a Cancel.
void cancel(Agent& agent, uint64_t id, absl::Status reason);
// Sends a call on the value behind `target` with `send`, and returns its id. If the creation of the value has
// failed, nothing is sent, and `done` gets its error. If the creation fails later, the call ends with that
// error.
uint64_t send_unless_failed(const std::shared_ptr<Agent>& agent, const RRefHandle& target,
                            OutgoingCall::Completion done,
                            absl::FunctionRef<uint64_t(OutgoingCall::Completion)> send);
// As above, for a call (OutgoingCall, MemberCall). If its status is an error, `done` gets this error.
template <class Call>
uint64_t send_on(const std::shared_ptr<Agent>& agent, Call& call, const RRefHandle& target,
                 OutgoingCall::Completion done) {
  if (!call.status().ok()) return call.send(std::move(done));
  to_proto(target.rref(), *call.request().mutable_target());
  return send_unless_failed(agent, target, std::move(done), [&call](OutgoingCall::Completion completion) {
    return call.send(std::move(completion));
  });
}
// Sends a call whose result, a value of `type`, stays at the callee. `object`, the object of the call (may be
// nullptr), lives until the answer arrives. Throws errors that are found before the call is sent.
std::shared_ptr<RRefHandle> send_remote(const std::shared_ptr<Agent>& agent, OutgoingCall& call,
                                        const std::string& type, const std::shared_ptr<RRefHandle>& object);

// Destroys a value of a user, whose destructor may make calls, as the agent.
template <class F>
void destroy_as(const std::weak_ptr<Agent>& agent, F&& destroy) {
  const std::shared_ptr<Agent> alive = agent.lock();
  std::optional<AgentGuard> guard;
  if (alive != nullptr) guard.emplace(alive);
  destroy();
}

// Decodes the answer to a call as an R.
template <class R>
typename Future<R>::Result decode_answer(IncomingPayload&& in) {
  if (in.payload->values_size() != 1)
    return absl::InvalidArgumentError("malformed answer: expected exactly one value");
  try {
    Decoder decoder = in.decoder();
    absl::StatusOr<ValueOf<R>> value = decode_value<ValueOf<R>>(in.payload->values(0), decoder);
    if (!value.ok()) return with_context(value.status(), "decoding the answer");
    if constexpr (std::is_void_v<R>) {
      return absl::OkStatus();
    } else {
      return typename Future<R>::Result(absl::in_place, *std::move(value));
    }
  } catch (...) {
    // A Codec of the user, or a move of the value, has thrown.
    return caught("decoding the answer");
  }
}

// Whether the thread that receives an answer decodes it: the work is short, and runs no code of users. Then
// nothing is gained by leaving it to the thread that reads the result.
template <class R>
bool decodes_at_once(const proto::Payload& payload) {
  constexpr std::size_t kMostBytes = 4096;
  return kRunsNoUserCode<R> && payload.values_size() == 1 && payload.values(0).ByteSizeLong() <= kMostBytes;
}

// The answer to a call. The thread that reads the result decodes it, because the codec, the moves and the
// destructors of its type are code of users.
template <class R>
class LazyAnswer : public future_internal::LazyResult<R> {
 public:
  LazyAnswer(IncomingPayload in, std::weak_ptr<Agent> agent) : in_(std::move(in)), agent_(std::move(agent)) {}

  // A destructor may make calls.
  void destroy() override {
    destroy_as(agent_, [this] { future_internal::LazyResult<R>::destroy(); });
  }

 private:
  void make(std::optional<typename Future<R>::Result>& result) override {
    // The payload ends first, so that the value holds the only copy of its tensors.
    future_internal::store(result, decode_answer<R>(std::exchange(in_, {})));
  }

  IncomingPayload in_;
  const std::weak_ptr<Agent> agent_;
};

// Sends the call. Returns a Future of its result, which is decoded as R. Cancelling the Future cancels the
// call. `target`: the object of the call, or nullptr.
template <class R>
Future<R> start(const std::shared_ptr<Agent>& agent, OutgoingCall& call, const RRefHandle* target = nullptr,
                uint64_t* id = nullptr) {
  Promise<R> promise(agent->executor());
  std::weak_ptr<Agent> weak = agent->weak_from_this();
  auto done = [promise, weak](absl::StatusOr<IncomingPayload>&& in) {
    if (!in.ok()) {
      promise.set_error(in.status());
    } else if constexpr (std::is_void_v<R> || std::is_arithmetic_v<R>) {
      promise.set_result(decode_answer<R>(*std::move(in)));
    } else {
      StreamFencePtr fence = std::move(in->fence);
      if (decodes_at_once<R>(*in->payload)) {
        typename Future<R>::Result result = decode_answer<R>(*std::move(in));
        // The payload ends first, so that the value holds the only copy of its tensors.
        *in = IncomingPayload();
        promise.set_result(std::move(result), std::move(fence));
      } else {
        promise.set_lazy(std::make_unique<LazyAnswer<R>>(*std::move(in), weak), std::move(fence));
      }
    }
  };
  const uint64_t call_id =
      target == nullptr ? call.send(std::move(done)) : send_on(agent, call, *target, std::move(done));
  if (id != nullptr) *id = call_id;
  promise.on_cancel([weak, call_id] {
    if (std::shared_ptr<Agent> alive = weak.lock()) {
      cancel(*alive, call_id, absl::CancelledError("cancelled by the caller"));
    }
  });
  return promise.future();
}

// Waits for a call that borrows the tensors of its caller. In every case they are not used any more when it
// returns. `target`: the object of the call, or nullptr.
template <class R>
R wait_borrowed(const std::shared_ptr<Agent>& agent, OutgoingCall& call, const RRefHandle* target = nullptr) {
  call.borrow_tensors();
  uint64_t id = 0;
  Future<R> future = start<R>(agent, call, target, &id);
  // Nobody else reads this result. A copy of a large value takes long, and a second handle to a tensor would
  // prevent that it is sent on without a copy.
  auto result = future_internal::take_result(std::move(future));
  if (!future_internal::status_of(result).ok()) cancel(*agent, id, future_internal::status_of(result));
  if constexpr (std::is_void_v<R>) {
    throw_if_error(result);
  } else {
    return value_or_throw(std::move(result));
  }
}

// Adds all positional arguments. `P`: the value types of the callee's parameters.
template <class... P, class... A>
void add_arguments(OutgoingCall& call, std::type_identity<std::tuple<P...>>, A&&... arguments) {
  static_assert(sizeof...(A) == sizeof...(P),
                "the number of arguments of the call differs from the number of parameters of its callee");
  if constexpr (sizeof...(A) == sizeof...(P)) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (call.add_argument<P>(convert_argument<I + 1, P>(std::forward<A>(arguments))), ...);
    }
    (std::index_sequence_for<A...>());
  }
}

// Whether the arguments A... of a call make the only parameter P of a constructor, as the numbers of
// torch::nn::LinearOptions(64, 10) do. Only a P whose Codec says so is made in this way.
template <class C, class... A>
inline constexpr bool kMakesParameter = false;
template <class P, class... A>
requires requires { Codec<P>::kMadeOfArguments; }
inline constexpr bool kMakesParameter<ConstructorTypes<P>, A...> =
    std::is_constructible_v<P, A...> && !(sizeof...(A) == 1 && (std::is_convertible_v<A, P> && ...));

// Calls add(parameter types, arguments...) for a constructor with the parameters P...
template <class Add, class... P, class... A>
void pass_constructor_arguments(const Add& add, ConstructorTypes<P...>, A&&... arguments) {
  using Parameters = std::type_identity<std::tuple<P...>>;
  if constexpr (kMakesParameter<ConstructorTypes<P...>, A...>) {
    add(Parameters(), P(std::forward<A>(arguments)...)...);
  } else {
    add(Parameters(), std::forward<A>(arguments)...);
  }
}

template <class Traits, class... A>
void add_arguments(OutgoingCall& call, A&&... arguments) {
  add_arguments(call, std::type_identity<typename Traits::Values>(), std::forward<A>(arguments)...);
}

// The name of F in messages. `T`: the class of the object of a method, which may have inherited it.
template <auto F, class T = typename FunctionTraits<decltype(F)>::Object>
std::string name_of() {
  if (const Callee* callee = registration_internal::entry_of<F, T>(); callee != nullptr) return callee->name;
  const std::string& name = cpp_function_name<F>();
  if constexpr (registration_internal::kIsInherited<F, T>) {
    const std::size_t colons = name.rfind("::");
    return absl::StrCat(cpp_type_name<T>(),
                        "::", colons == std::string::npos ? name : name.substr(colons + 2));
  } else {
    return name;
  }
}

// Sets the callee of a call (OutgoingCall, GroupCall).
template <class Call>
void set_callee(Call& call, const Callee& callee, CalleeKind kind) {
  if (kind == CalleeKind::kMethod) {
    call.request().set_method(callee.name);
  } else {
    call.request().set_function(callee.name);
  }
  call.request().set_signature(callee.signature_hash);
  if (callee.idempotent) call.set_idempotent();
}

// The same for a C++ function. If it is not registered, sets the call's status to an error.
template <auto F, class T = typename FunctionTraits<decltype(F)>::Object, class Call>
void set_function(Call& call) {
  constexpr CalleeKind kKind =
      FunctionTraits<decltype(F)>::kIsMethod ? CalleeKind::kMethod : CalleeKind::kFunction;
  if (const Callee* callee = registration_internal::entry_of<F, T>()) {
    set_callee(call, *callee, kKind);
  } else {
    call.set_status(Registry::unregistered(kKind, name_of<F, T>()));
  }
}

// Whether a T is an Object, or its class is derived from that. T need not be complete if it is an Object.
template <class T, class Object>
concept IsA = std::is_same_v<T, Object> || std::is_convertible_v<T*, Object*>;

// A call of a function or, through a reference to a T, of a method, with its arguments.
template <auto F, class T = void>
struct FunctionCall : OutgoingCall {
  using Traits = FunctionTraits<decltype(F)>;
  using Result = typename Traits::Result;
  static_assert(!std::is_void_v<T> || !Traits::kIsMethod, "methods are called through an RRef");
  static_assert(std::is_void_v<T> || (Traits::kIsMethod && IsA<T, typename Traits::Object>),
                "name a method of the referenced class");

  template <class... A>
  FunctionCall(Caller& caller, const Destination& to, A&&... arguments)
      : OutgoingCall(caller, to, name_of<F, T>()) {
    set_function<F, T>(*this);
    add_arguments<Traits>(*this, std::forward<A>(arguments)...);
  }
};

// A call of a callee that is named at run time, with its arguments.
struct NamedCall : OutgoingCall {
  template <class C, class... A>
  NamedCall(Caller& caller, const Destination& to, const C& callee, A&&... arguments)
      : OutgoingCall(caller, to, callee_name(callee)) {
    prepare_call(*this, callee, std::forward<A>(arguments)...);
  }
};

// Sends a call on the object behind `target`. The handle lives until the answer arrives.
template <class R>
Future<R> start_on(const std::shared_ptr<Agent>& agent, OutgoingCall& call,
                   const std::shared_ptr<RRefHandle>& target) {
  Future<R> future = start<R>(agent, call, target.get());
  future_internal::StateAccess::of(future)->on_done_inline([target] {});
  return future;
}

// The type as which an argument is sent if the parameter types of the callee are not known.
template <class A>
using NaturalType =
    std::conditional_t<std::is_convertible_v<A, const char*> && !std::is_arithmetic_v<std::decay_t<A>>,
                       std::string, std::decay_t<A>>;

// Whether the first argument names a callee, as Op does.
template <class...>
inline constexpr bool kNamesCallee = false;
template <class First, class... Rest>
inline constexpr bool kNamesCallee<First, Rest...> = requires(const std::remove_cvref_t<First>& callee) {
  callee_name(callee);
};

template <class T>
void set_constructor(OutgoingCall& call) {
  const Callee* callee = callee_of_class<T>;
  if (callee == nullptr) {
    call.set_status(Registry::unregistered(CalleeKind::kConstructor, cpp_type_name<T>()));
    return;
  }
  call.request().set_constructor(callee->name);
}

// Sends a call whose result stays at the callee. Returns the reference to it. `object`, the object of the
// call, lives until the answer arrives.
template <class T>
RRef<T> start_remote(const std::shared_ptr<Agent>& agent, OutgoingCall& call,
                     const std::shared_ptr<RRefHandle>& object = nullptr) {
  return RRef<T>(send_remote(agent, call, value_type_name<T>(), object));
}

// Creates an object of class T, whose constructor is declared as C (rpc/registry/constructor.h).
template <class T, class C, class... A>
RRef<T> remote_constructed(const std::shared_ptr<Agent>& agent, const Destination& to, A&&... arguments) {
  OutgoingCall call(agent->caller(), to, cpp_type_name<T>());
  set_constructor<T>(call);
  if constexpr (std::is_same_v<C, UndeclaredConstructor>) {
    (call.add_argument<NaturalType<A>>(std::forward<A>(arguments)), ...);
  } else {
    pass_constructor_arguments(
        [&call](auto parameters, auto&&... given) {
          add_arguments(call, parameters, std::forward<decltype(given)>(given)...);
        },
        C(), std::forward<A>(arguments)...);
  }
  return start_remote<T>(agent, call);
}

template <class T, class C, class... A>
RRef<T> remote_named(const std::shared_ptr<Agent>& agent, const Destination& to, const C& callee,
                     A&&... arguments) {
  NamedCall call(agent->caller(), to, callee, std::forward<A>(arguments)...);
  return start_remote<T>(agent, call);
}

// remote<T>(...): the result of a named callee, or a new object.
template <class T, class C, class... A>
RRef<T> remote_value(const std::shared_ptr<Agent>& agent, const Destination& to, A&&... arguments) {
  if constexpr (kNamesCallee<A...>) {
    return remote_named<T>(agent, to, std::forward<A>(arguments)...);
  } else {
    return remote_constructed<T, C>(agent, to, std::forward<A>(arguments)...);
  }
}

}  // namespace gradwire::rpc::call_internal
