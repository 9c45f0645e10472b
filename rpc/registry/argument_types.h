#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

// Converts the arguments of a call to the types of its callee's parameters: by implicit conversion, as in a
// direct call, and never by a cast.
namespace gradwire::rpc::call_internal {

// Whether parameter `kNumber` (counted from 1), whose values have type P, accepts an argument of type A. The
// number appears in the compiler's message.
template <std::size_t kNumber, class P, class A>
struct ParameterTakes
    : std::bool_constant<std::is_same_v<std::remove_cvref_t<A>, P> || std::is_convertible_v<A, P>> {};

// Replaces an argument that does not convert, so that the message below is the only one. Never defined.
template <class P>
P& unconverted();

// Returns the argument itself if it is a P, else the P that it converts to.
template <std::size_t kNumber, class P, class A>
decltype(auto) convert_argument(A&& argument) {
  static_assert(
      ParameterTakes<kNumber, P, A&&>::value,
      "an argument does not convert implicitly to its parameter, see "
      "ParameterTakes<number of the parameter, its type, type of the argument>: pass a value of the "
      "parameter's type");
  if constexpr (std::is_same_v<std::remove_cvref_t<A>, P>) {
    return std::forward<A>(argument);
  } else if constexpr (ParameterTakes<kNumber, P, A&&>::value) {
    return [](A&& from) -> P { return std::forward<A>(from); }(std::forward<A>(argument));
  } else {
    return unconverted<P>();
  }
}

}  // namespace gradwire::rpc::call_internal
