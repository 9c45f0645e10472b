#pragma once

#include "gradwire/base/cpp20.h"

#include <type_traits>

// This header includes almost nothing, so that headers of registered classes compile fast.

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

// Names the class T when the declaration of its constructor is looked up.
template <class T>
struct ConstructorOf {};

// Lists the parameter types of a declared constructor.
template <class... P>
struct ConstructorTypes {
  // The parameter types without references and qualifiers.
  using Decayed = ConstructorTypes<std::decay_t<P>...>;
};

// Stands for the constructor of a class without a declaration.
struct UndeclaredConstructor {};
// The fallback that the lookup finds without a declaration. Never defined.
UndeclaredConstructor gradwire_rpc_constructor(...);

// ConstructorTypes<...> where a declaration is visible, else UndeclaredConstructor. The result may differ
// between source files. Everything that depends on it therefore takes it as a template argument, so that each
// case has a symbol of its own.
template <class T>
using DeclaredConstructor = decltype(gradwire_rpc_constructor(ConstructorOf<T>()));

// Whether a visible declaration of T's constructor, if any, has the parameter types P...
template <class T, class... P>
concept ConstructorAgrees =
    std::is_same_v<DeclaredConstructor<T>, UndeclaredConstructor> || std::is_same_v < DeclaredConstructor<T>,
typename ConstructorTypes<P...>::Decayed > ;

}  // namespace gradwire::rpc
