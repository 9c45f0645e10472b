#pragma once

#include <string>
#include <string_view>

namespace gradwire::rpc {

namespace type_name_internal {

inline constexpr std::string_view kTypeKey = "T = ";
inline constexpr std::string_view kFunctionKey = "F = ";

// Extracts the name of an entity from the __PRETTY_FUNCTION__ of a template whose parameter is `key` ("T = "
// or "F = "). The spelling is the same for gcc and clang: no '&' before functions, "(anonymous)" for unnamed
// namespaces, no spaces after commas and before '*' and '&', ">>" instead of "> >", integers as "unsigned
// long".
std::string normalise(std::string_view pretty, std::string_view key);

template <class T>
std::string_view pretty_type() {
  return __PRETTY_FUNCTION__;
}
template <auto F>
std::string_view pretty_value() {
  return __PRETTY_FUNCTION__;
}

}  // namespace type_name_internal

// Returns the qualified name of a type, for example "ns::ParameterServer".
template <class T>
const std::string& cpp_type_name() {
  static const std::string name =
      type_name_internal::normalise(type_name_internal::pretty_type<T>(), type_name_internal::kTypeKey);
  return name;
}

// Returns the qualified name of a function, for example "ns::scale" or "ns::ParameterServer::push". All
// instances of a function template have the same name, so they must be registered with GRADWIRE_RPC_AS.
template <auto F>
const std::string& cpp_function_name() {
  static const std::string name =
      type_name_internal::normalise(type_name_internal::pretty_value<F>(), type_name_internal::kFunctionKey);
  return name;
}

}  // namespace gradwire::rpc
