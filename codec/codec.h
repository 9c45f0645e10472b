#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

// The conversion of values of type T to and from messages. Specialise it for your own types:
//
//   template <>
//   struct gradwire::rpc::Codec<Point> {
//     static std::string type_name() { return "Point"; }          // the same on both sides
//     static absl::Status encode(const Point& point, Encoder& encoder, proto::Value& out) {
//       return encode_value<std::pair<double, double>>(std::make_pair(point.x, point.y), encoder, out);
//     }
//     static absl::StatusOr<Point> decode(const proto::Value& in, Decoder& decoder) {
//       GRADWIRE_ASSIGN_OR_RETURN(auto xy, (decode_value<std::pair<double, double>>(in, decoder)));
//       return Point{xy.first, xy.second};
//     }
//   };
//
// decode() gets bytes from another process: it must check everything that it uses and return InvalidArgument
// for invalid input. It must neither block nor wait for other calls. The value of an answer is decoded on the
// thread that first reads the result. So decode(), and the moves and destructors of T, must not take a lock
// that this thread may hold.
//
// Available codecs: in this header numbers, bool and strings; in codec/codec_containers.h optional, pair,
// tuple, vector, map, complex, protobuf messages and absl::Status; in rpc/calls/rref.h RRef<T>; in
// codec/torch/tensor_codec.h at::Tensor; in codec/torch/ivalue_codec.h c10::IValue.
template <class T, class Enable = void>
struct Codec;

// Whether decoding, moving and destroying a T runs no code of the program. For the library.
template <class T>
inline constexpr bool kRunsNoUserCode = std::is_void_v<T> || std::is_arithmetic_v<T>;
template <>
inline constexpr bool kRunsNoUserCode<std::string> = true;
template <class T>
inline constexpr bool kRunsNoUserCode<std::vector<T>> = kRunsNoUserCode<T>;

template <class T>
concept Sendable = requires {
  { Codec<T>::type_name() } -> std::convertible_to<std::string>;
};

// As Sendable, but as a class template: compilers then name T in their error messages.
template <class T>
struct HasCodec : std::bool_constant<Sendable<T>> {};

// Fails to compile, with advice in the message, if no Codec of T is visible.
template <class T>
constexpr void require_codec() {
  static_assert(
      HasCodec<T>::value,
      "a value of this type cannot be sent, because it has no Codec: include the header of its Codec "
      "(codec/codec_containers.h, rpc/calls/rref.h, codec/torch/tensor_codec.h, codec/torch/ivalue_codec.h) "
      "or "
      "specialise gradwire::rpc::Codec for it (codec/codec.h has an example)");
}

// Returns Codec<T>::type_name().
template <class T>
std::string codec_type_name() {
  require_codec<T>();
  return Codec<T>::type_name();
}

// Encodes `value`, a T or a const T&. A value that is moved in is consumed: its tensors may be sent without a
// copy. InvalidArgument if it is nested more than kMaxNesting deep.
template <class T, class V>
absl::Status encode_value(V&& value, Encoder& encoder, proto::Value& out) {
  require_codec<T>();
  const Nesting::Step step(encoder.nesting(), out);
  GRADWIRE_RETURN_IF_ERROR(step.status());
  return Codec<T>::encode(std::forward<V>(value), encoder, out);
}

template <class T>
absl::StatusOr<T> decode_value(const proto::Value& in, Decoder& decoder) {
  require_codec<T>();
  const Nesting::Step step(decoder.nesting(), in);
  GRADWIRE_RETURN_IF_ERROR(step.status());
  return Codec<T>::decode(in, decoder);
}

// The error of decoders for a value of the wrong kind: "expected a value of type str, got one of kind
// integer".
absl::Status wrong_kind(absl::string_view expected, const proto::Value& got);

template <>
struct Codec<bool> {
  static std::string type_name() { return "bool"; }
  static absl::Status encode(bool value, Encoder&, proto::Value& out) {
    out.set_boolean(value);
    return absl::OkStatus();
  }
  static absl::StatusOr<bool> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kBoolean) return wrong_kind("bool", in);
    return in.boolean();
  }
};

// All other integral types. Unsigned 64-bit values are sent as the int64 with the same bits.
template <class T>
struct Codec<T, std::enable_if_t<std::is_integral_v<T>>> {
  static std::string type_name() { return absl::StrCat(std::is_signed_v<T> ? "int" : "uint", 8 * sizeof(T)); }
  static absl::Status encode(T value, Encoder&, proto::Value& out) {
    out.set_integer(static_cast<int64_t>(value));
    return absl::OkStatus();
  }
  static absl::StatusOr<T> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kInteger) return wrong_kind(type_name(), in);
    if (static_cast<int64_t>(static_cast<T>(in.integer())) != in.integer()) {
      return absl::InvalidArgumentError(absl::StrCat(in.integer(), " does not fit into ", type_name()));
    }
    return static_cast<T>(in.integer());
  }
};

template <class T>
struct Codec<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static_assert(sizeof(T) <= 8, "long double has no portable form");
  static std::string type_name() { return absl::StrCat("float", 8 * sizeof(T)); }
  static absl::Status encode(T value, Encoder&, proto::Value& out) {
    out.set_real(value);
    return absl::OkStatus();
  }
  static absl::StatusOr<T> decode(const proto::Value& in, Decoder&) {
    // An integer is accepted for a real and converted as in C++.
    if (in.kind_case() == proto::Value::kInteger) return static_cast<T>(in.integer());
    if (in.kind_case() != proto::Value::kReal) return wrong_kind(type_name(), in);
    return static_cast<T>(in.real());
  }
};

// Enumerations are sent as their underlying integer. Decoding accepts any value of the underlying type.
template <class T>
struct Codec<T, std::enable_if_t<std::is_enum_v<T>>> {
  using Integer = std::underlying_type_t<T>;
  static std::string type_name() { return absl::StrCat("enum[", Codec<Integer>::type_name(), "]"); }
  static absl::Status encode(T value, Encoder& encoder, proto::Value& out) {
    return Codec<Integer>::encode(static_cast<Integer>(value), encoder, out);
  }
  static absl::StatusOr<T> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(Integer value, Codec<Integer>::decode(in, decoder));
    return static_cast<T>(value);
  }
};

template <>
struct Codec<std::string> {
  static std::string type_name() { return "str"; }
  static absl::Status encode(std::string value, Encoder&, proto::Value& out) {
    out.set_text(std::move(value));
    return absl::OkStatus();
  }
  static absl::StatusOr<std::string> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kText) return wrong_kind("str", in);
    return in.text();
  }
};

}  // namespace gradwire::rpc
