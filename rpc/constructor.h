#pragma once

#include <type_traits>

// Lets calls of remote<type>(...) be checked while they are compiled. Optional; at namespace scope, in the
// namespace of the class (for a class of another library: in gradwire::rpc), in the header that declares it,
// with the parameter types of its registration:
//
//   class ParameterServer { ... };
//   GRADWIRE_RPC_CONSTRUCTOR(ParameterServer, int64_t)
//
// Arguments then convert as in a direct call of the constructor. Without it the types of the arguments decide
// how they travel, and the callee refuses those that do not fit. GRADWIRE_RPC_CLASS implies it for the code
// below it in its file.
#define GRADWIRE_RPC_CONSTRUCTOR(type, ...)                                         \
  template <class... None>                                                          \
  ::gradwire::rpc::ConstructorTypes<__VA_ARGS__>::Decayed gradwire_rpc_constructor( \
      ::gradwire::rpc::ConstructorOf<type>);

namespace gradwire::rpc {

// Names the class in the lookup of its constructor's declaration.
template <class T>
struct ConstructorOf {};

// The parameter types of a declared constructor.
template <class... P>
struct ConstructorTypes {
  // The types of the values that the parameters take.
  using Decayed = ConstructorTypes<std::decay_t<P>...>;
};

// Stands for the constructor of a class that has no declaration.
struct UndeclaredConstructor {};
// What the lookup finds where there is no declaration. Never defined.
UndeclaredConstructor gradwire_rpc_constructor(...);

// ConstructorTypes<...> where a declaration is visible, else UndeclaredConstructor. Differs between source
// files: so it is a template argument of whatever depends on it, which gives that another name in each case.
template <class T>
using DeclaredConstructor = decltype(gradwire_rpc_constructor(ConstructorOf<T>()));

// Whether no declaration of T's constructor says anything else than P...
template <class T, class... P>
concept ConstructorAgrees =
    std::is_same_v<DeclaredConstructor<T>, UndeclaredConstructor> || std::is_same_v < DeclaredConstructor<T>,
typename ConstructorTypes<P...>::Decayed > ;

}  // namespace gradwire::rpc
