#pragma once

#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/complex.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"

namespace gradwire::rpc {

// Encodes C++ values as TorchScript represents them: integers of any width and enumerations (including those
// of libtorch) as int, all floating-point types as float, vectors as lists, maps as dictionaries, nullopt as
// None. The encoding is that of Codec<c10::IValue> for the same value, but no IValue is created.
// ATen/core/ivalue.h takes as long to compile as the rest of rpc/rpc.h, and few programs need it.
//
// type() is the element type that a list of T names (codec/torch/ivalue_type.h). kElementsShowType: the
// receiver can derive the element type from the elements of a non-empty list.
//
// The primary template accepts types that convert to IValue, for example c10::List, if ATen/core/ivalue.h is
// included. For all other types it is empty: they cannot be arguments.
template <class T>
struct OperatorArgumentCodec;

namespace operator_argument_internal {

// c10::IValue as a dependent type, because it may be incomplete here.
template <class T>
struct IValueFor {
  using type = c10::IValue;
};

// Pointers are excluded: they would convert to true or to an integer.
template <class T>
concept ConvertsToIValue =
    !std::is_pointer_v<T> && !std::is_null_pointer_v<T> && !std::is_member_pointer_v<T> && requires {
  sizeof(typename IValueFor<T>::type);
}
&&std::is_convertible_v<const T&, typename IValueFor<T>::type>;

template <class T>
struct AsIValue {};
template <ConvertsToIValue T>
struct AsIValue<T> {
  static absl::Status encode(const T& value, Encoder& encoder, proto::Value& out) {
    return Codec<c10::IValue>::encode(typename IValueFor<T>::type(value), encoder, out);
  }
};

// Types of elements of lists, dictionaries, tuples and optionals.
template <class T>
concept Element = requires {
  { OperatorArgumentCodec<T>::type() } -> std::convertible_to<std::string>;
};

// For types whose Codec has the same encoding as an IValue.
template <class T>
struct AsItself {
  template <class V>
  static absl::Status encode(V&& value, Encoder& encoder, proto::Value& out) {
    return Codec<T>::encode(std::forward<V>(value), encoder, out);
  }
};

template <class Map>
struct MapArgument {
  using Key = OperatorArgumentCodec<typename Map::key_type>;
  using Mapped = OperatorArgumentCodec<typename Map::mapped_type>;
  static constexpr bool kElementsShowType = false;
  static std::string type() { return absl::StrCat("Dict[", Key::type(), ",", Mapped::type(), "]"); }
  static absl::Status encode(const Map& value, Encoder& encoder, proto::Value& out) {
    proto::ValueMap& map = *out.mutable_map();
    map.set_key_type(Key::type());
    map.set_value_type(Mapped::type());
    for (const auto& [key, mapped] : value) {
      GRADWIRE_RETURN_IF_ERROR(Key::encode(key, encoder, *map.add_keys()));
      GRADWIRE_RETURN_IF_ERROR(Mapped::encode(mapped, encoder, *map.add_values()));
    }
    return absl::OkStatus();
  }
};

template <class Range, class T>
struct ListArgument {
  static constexpr bool kElementsShowType = false;
  static std::string type() { return absl::StrCat("List[", OperatorArgumentCodec<T>::type(), "]"); }
  static absl::Status encode(const Range& value, Encoder& encoder, proto::Value& out) {
    if constexpr ((std::is_integral_v<T> && !std::is_same_v<T, bool>) || std::is_enum_v<T>) {
      auto& integers = *out.mutable_integers()->mutable_values();
      for (const T element : value) integers.Add(static_cast<int64_t>(element));
    } else if constexpr (std::is_floating_point_v<T>) {
      auto& reals = *out.mutable_reals()->mutable_values();
      for (const T element : value) reals.Add(static_cast<double>(element));
    } else {
      proto::ValueList& list = *out.mutable_list();
      if (!OperatorArgumentCodec<T>::kElementsShowType || value.size() == 0) {
        list.set_element_type(OperatorArgumentCodec<T>::type());
      }
      for (const auto& element : value) {
        GRADWIRE_RETURN_IF_ERROR(OperatorArgumentCodec<T>::encode(element, encoder, *list.add_values()));
      }
    }
    return absl::OkStatus();
  }
};

struct TextArgument {
  static constexpr bool kElementsShowType = true;
  static std::string type() { return "str"; }
  static absl::Status encode(std::string_view value, Encoder&, proto::Value& out) {
    out.set_text(value.data(), value.size());
    return absl::OkStatus();
  }
};

}  // namespace operator_argument_internal

template <class T>
struct OperatorArgumentCodec : operator_argument_internal::AsIValue<T> {};

template <>
struct OperatorArgumentCodec<c10::IValue> : operator_argument_internal::AsItself<c10::IValue> {
  static constexpr bool kElementsShowType = false;
  static std::string type() { return "Any"; }
};
template <>
struct OperatorArgumentCodec<at::Tensor> : operator_argument_internal::AsItself<at::Tensor> {
  static constexpr bool kElementsShowType = true;
  static std::string type() { return "Tensor"; }
};
template <>
struct OperatorArgumentCodec<bool> : operator_argument_internal::AsItself<bool> {
  static constexpr bool kElementsShowType = true;
  static std::string type() { return "bool"; }
};
template <>
struct OperatorArgumentCodec<c10::Scalar> : operator_argument_internal::AsItself<c10::Scalar> {
  static constexpr bool kElementsShowType = false;
  static std::string type() { return "number"; }
};
template <>
struct OperatorArgumentCodec<c10::Device> : operator_argument_internal::AsItself<c10::Device> {
  static constexpr bool kElementsShowType = false;
  static std::string type() { return "Device"; }
};
template <class T>
struct OperatorArgumentCodec<c10::complex<T>> : operator_argument_internal::AsItself<c10::complex<T>> {
  static constexpr bool kElementsShowType = true;
  static std::string type() { return "complex"; }
};
template <class T>
requires(std::is_integral_v<T> || std::is_enum_v<T>) struct OperatorArgumentCodec<T> {
  static std::string type() { return "int"; }
  static absl::Status encode(T value, Encoder&, proto::Value& out) {
    out.set_integer(static_cast<int64_t>(value));
    return absl::OkStatus();
  }
};
template <std::floating_point T>
struct OperatorArgumentCodec<T> {
  static std::string type() { return "float"; }
  static absl::Status encode(T value, Encoder&, proto::Value& out) {
    out.set_real(static_cast<double>(value));
    return absl::OkStatus();
  }
};
template <>
struct OperatorArgumentCodec<std::string> : operator_argument_internal::TextArgument {};
template <>
struct OperatorArgumentCodec<std::string_view> : operator_argument_internal::TextArgument {};
template <>
struct OperatorArgumentCodec<const char*> : operator_argument_internal::TextArgument {};
template <>
struct OperatorArgumentCodec<char*> : operator_argument_internal::TextArgument {};
template <>
struct OperatorArgumentCodec<std::nullopt_t> {
  static absl::Status encode(std::nullopt_t, Encoder&, proto::Value& out) {
    out.set_none(true);
    return absl::OkStatus();
  }
};
template <operator_argument_internal::Element T>
struct OperatorArgumentCodec<std::optional<T>> {
  static constexpr bool kElementsShowType = false;
  static std::string type() { return absl::StrCat("Optional[", OperatorArgumentCodec<T>::type(), "]"); }
  static absl::Status encode(const std::optional<T>& value, Encoder& encoder, proto::Value& out) {
    if (value) return OperatorArgumentCodec<T>::encode(*value, encoder, out);
    out.set_none(true);
    return absl::OkStatus();
  }
};
template <operator_argument_internal::Element T>
struct OperatorArgumentCodec<std::vector<T>> : operator_argument_internal::ListArgument<std::vector<T>, T> {};
template <operator_argument_internal::Element T>
struct OperatorArgumentCodec<c10::ArrayRef<T>>
    : operator_argument_internal::ListArgument<c10::ArrayRef<T>, T> {};
template <operator_argument_internal::Element K, operator_argument_internal::Element V>
struct OperatorArgumentCodec<std::map<K, V>> : operator_argument_internal::MapArgument<std::map<K, V>> {};
template <operator_argument_internal::Element K, operator_argument_internal::Element V>
struct OperatorArgumentCodec<std::unordered_map<K, V>>
    : operator_argument_internal::MapArgument<std::unordered_map<K, V>> {};
template <operator_argument_internal::Element... T>
struct OperatorArgumentCodec<std::tuple<T...>> {
  static constexpr bool kElementsShowType = false;
  static std::string type() {
    std::string types;
    (absl::StrAppend(&types, types.empty() ? "" : ",", OperatorArgumentCodec<T>::type()), ...);
    return absl::StrCat("Tuple[", types, "]");
  }
  static absl::Status encode(const std::tuple<T...>& value, Encoder& encoder, proto::Value& out) {
    proto::ValueList& tuple = *out.mutable_tuple();
    absl::Status status;
    std::apply(
        [&](const T&... element) {
          (void)((status = OperatorArgumentCodec<T>::encode(element, encoder, *tuple.add_values()),
                  status.ok()) &&
                 ...);
        },
        value);
    return status;
  }
};

// Types of arguments of operators and TorchScript functions.
template <class A>
concept OperatorArgument = requires(A&& argument, Encoder& encoder, proto::Value& out) {
  OperatorArgumentCodec<std::decay_t<A>>::encode(std::forward<A>(argument), encoder, out);
};

}  // namespace gradwire::rpc
