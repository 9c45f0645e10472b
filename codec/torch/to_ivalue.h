#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradwire::rpc {
namespace to_ivalue_internal {

// The type that elements of type T have inside an IValue.
template <class T>
struct Element {
  using type = T;
};
template <std::integral T>
struct Element<T> {
  using type = std::conditional_t<std::is_same_v<T, bool>, bool, int64_t>;
};
template <std::floating_point T>
struct Element<T> {
  using type = double;
};
template <>
struct Element<const char*> {
  using type = std::string;
};
template <>
struct Element<c10::ScalarType> {
  using type = int64_t;
};
template <class T>
struct Element<std::vector<T>> {
  using type = c10::List<typename Element<T>::type>;
};
template <class T>
struct Element<std::optional<T>> {
  using type = std::optional<typename Element<T>::type>;
};

template <class Range>
c10::IValue list_of(const Range& range) {
  using T = std::decay_t<decltype(*range.begin())>;
  using E = typename Element<T>::type;
  c10::List<E> list;
  list.reserve(range.size());
  for (const T& element : range) {
    if constexpr (std::is_convertible_v<const T&, E>) {
      list.push_back(static_cast<E>(element));
    } else {
      list.push_back(list_of(element).template to<E>());
    }
  }
  return c10::IValue(std::move(list));
}

template <class Map>
c10::IValue dict_of(const Map& map) {
  using K = typename Element<typename Map::key_type>::type;
  using V = typename Element<typename Map::mapped_type>::type;
  c10::Dict<K, V> dict;
  for (const auto& [key, value] : map) dict.insert(static_cast<K>(key), static_cast<V>(value));
  return c10::IValue(std::move(dict));
}

}  // namespace to_ivalue_internal

// C++ values as TorchScript sees them: integers of any width as int, every floating-point type as float,
// enumerations of libtorch as their numbers, vectors as lists, maps as dictionaries, nullopt as None.
inline c10::IValue to_ivalue(c10::IValue value) { return value; }
inline c10::IValue to_ivalue(const at::Tensor& value) { return c10::IValue(value); }
inline c10::IValue to_ivalue(at::Tensor&& value) { return c10::IValue(std::move(value)); }
// Pointers are no values: without this they would become true, or an integer.
template <class T>
requires(std::is_null_pointer_v<T> || std::is_member_pointer_v<T> ||
         (std::is_pointer_v<T> &&
          !std::is_same_v<std::remove_cv_t<std::remove_pointer_t<T>>, char>)) c10::IValue to_ivalue(T value)
= delete;
inline c10::IValue to_ivalue(bool value) { return c10::IValue(value); }
template <std::integral T>
requires(!std::same_as<T, bool>) c10::IValue to_ivalue(T value) {
  return c10::IValue(static_cast<int64_t>(value));
}
template <std::floating_point T>
c10::IValue to_ivalue(T value) {
  return c10::IValue(static_cast<double>(value));
}
template <class T>
requires std::is_enum_v<T> c10::IValue to_ivalue(T value) { return c10::IValue(static_cast<int64_t>(value)); }
template <class T>
c10::IValue to_ivalue(c10::complex<T> value) {
  return c10::IValue(c10::complex<double>(value));
}
inline c10::IValue to_ivalue(const c10::Scalar& value) { return c10::IValue(value); }
inline c10::IValue to_ivalue(const c10::Device& value) { return c10::IValue(value); }
inline c10::IValue to_ivalue(const char* value) { return c10::IValue(std::string(value)); }
inline c10::IValue to_ivalue(std::string value) { return c10::IValue(std::move(value)); }
inline c10::IValue to_ivalue(std::string_view value) { return c10::IValue(std::string(value)); }
inline c10::IValue to_ivalue(std::nullopt_t) { return c10::IValue(); }
template <class T>
c10::IValue to_ivalue(const std::vector<T>& value) {
  return to_ivalue_internal::list_of(value);
}
template <class T>
c10::IValue to_ivalue(c10::ArrayRef<T> value) {
  return to_ivalue_internal::list_of(value);
}
template <class K, class V>
c10::IValue to_ivalue(const std::map<K, V>& value) {
  return to_ivalue_internal::dict_of(value);
}
template <class K, class V>
c10::IValue to_ivalue(const std::unordered_map<K, V>& value) {
  return to_ivalue_internal::dict_of(value);
}
template <class T>
c10::IValue to_ivalue(const std::optional<T>& value) {
  return value ? to_ivalue(*value) : c10::IValue();
}
template <class... T>
c10::IValue to_ivalue(const std::tuple<T...>& value) {
  return std::apply(
      [](const T&... element) { return c10::IValue(c10::ivalue::Tuple::create({to_ivalue(element)...})); },
      value);
}

// What an operator or a TorchScript function takes as an argument.
template <class A>
concept OperatorArgument = requires(A&& argument) {
  to_ivalue(std::forward<A>(argument));
};

}  // namespace gradwire::rpc
