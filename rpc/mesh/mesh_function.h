#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gradwire/codec/function_traits.h"
#include "gradwire/rpc/calls/call_steps.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/mesh/gather.h"
#include "gradwire/rpc/mesh/group_call.h"
#include "gradwire/rpc/registry/argument_types.h"
#include "gradwire/rpc/registry/registration.h"

// Puts the callee and the arguments into a GroupCall, as rpc/calls/call_steps.h does for a call of one
// worker.
namespace gradwire::rpc {
template <class T>
class MeshRRef;
}  // namespace gradwire::rpc

namespace gradwire::rpc::mesh_internal {

template <class P, class A>
inline constexpr bool kIsReferenceOfEach = false;
template <class T>
inline constexpr bool kIsReferenceOfEach<RRef<T>, MeshRRef<T>> = true;

// Adds all positional arguments. `P`: the value types of the callee's parameters. A MeshRRef gives each
// member its own reference.
template <class... P, class... A>
void add_arguments(GroupCall& call, std::type_identity<std::tuple<P...>>, A&&... arguments) {
  static_assert(sizeof...(A) == sizeof...(P),
                "the number of arguments of the call differs from the number of parameters of its callee");
  const auto add_one = [&call]<class Q, std::size_t kNumber, class V>(V&& argument) {
    if constexpr (kIsReferenceOfEach<Q, std::remove_cvref_t<V>>) {
      call.add_reference_of_each(argument.handles());
    } else {
      call.add_argument<Q>(call_internal::convert_argument<kNumber, Q>(std::forward<V>(argument)));
    }
  };
  if constexpr (sizeof...(A) == sizeof...(P)) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (add_one.template operator()<P, I + 1>(std::forward<A>(arguments)), ...);
    }
    (std::index_sequence_for<A...>());
  }
}

// The call of a function or, with the class `T` of the objects, of a method of several workers, with its
// arguments.
template <auto F, class T = void>
struct GroupFunctionCall : GroupCall {
  using Traits = FunctionTraits<decltype(F)>;
  using Result = typename Traits::Result;
  static_assert(!std::is_void_v<T> || !Traits::kIsMethod, "methods are called through a MeshRRef");
  static_assert(std::is_void_v<T> || (Traits::kIsMethod && call_internal::IsA<T, typename Traits::Object>),
                "name a method of the referenced class");

  template <class... A>
  GroupFunctionCall(Agent& agent, std::size_t members, A&&... arguments)
      : GroupCall(agent.caller(), call_internal::name_of<F, T>(), members) {
    call_internal::set_function<F, T>(*this);
    mesh_internal::add_arguments(*this, std::type_identity<typename Traits::Values>(),
                                 std::forward<A>(arguments)...);
  }
};

// The creation of an object of class T at several workers. `C`: see rpc/registry/constructor.h.
template <class T, class C>
struct GroupConstruction : GroupCall {
  template <class... A>
  GroupConstruction(Agent& agent, std::size_t members, A&&... arguments)
      : GroupCall(agent.caller(), cpp_type_name<T>(), members) {
    if (const Callee* callee = callee_of_class<T>; callee != nullptr) {
      request().set_constructor(callee->name);
    } else {
      set_status(Registry::unregistered(CalleeKind::kConstructor, cpp_type_name<T>()));
    }
    if constexpr (std::is_same_v<C, UndeclaredConstructor>) {
      (add_argument<call_internal::NaturalType<A>>(std::forward<A>(arguments)), ...);
    } else {
      call_internal::pass_constructor_arguments(
          [this](auto parameters, auto&&... given) {
            mesh_internal::add_arguments(*this, parameters, std::forward<decltype(given)>(given)...);
          },
          C(), std::forward<A>(arguments)...);
    }
  }
};

}  // namespace gradwire::rpc::mesh_internal
