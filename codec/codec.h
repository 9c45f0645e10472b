#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/proto/value.pb.h"

namespace gradwire::rpc {

// How values of type T travel. Specialise it for types of your own:
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
// decode() gets bytes from another process: it checks all it uses, returns InvalidArgument for what cannot
// be, and neither blocks nor waits for other calls. An answer's values are decoded on whichever thread found
// the answer, which may be one that waits for another call: decode(), and the moves and destructors of T,
// must not take a lock that anybody holds while he calls or waits.
//
// Covered: here numbers, bool and strings; in codec/codec_containers.h optional, pair, tuple, vector, map,
// complex, protobuf messages and absl::Status; in rpc/rref.h RRef<T>; in codec/torch/tensor_codec.h
// at::Tensor; in codec/torch/ivalue_codec.h c10::IValue.
template <class T, class Enable = void>
struct Codec;

template <class T>
concept Sendable = requires {
  { Codec<T>::type_name() } -> std::convertible_to<std::string>;
};

// As Sendable; compilers name T when they report it.
template <class T>
struct HasCodec : std::bool_constant<Sendable<T>> {};

// Stops the compilation, with advice, where no Codec of T is visible.
template <class T>
constexpr void require_codec() {
  static_assert(
      HasCodec<T>::value,
      "a value of this type cannot be sent, because it has no Codec: include the header of its Codec "
      "(codec/codec_containers.h, rpc/rref.h, codec/torch/tensor_codec.h, codec/torch/ivalue_codec.h) or "
      "specialise gradwire::rpc::Codec for it (codec/codec.h has an example)");
}

// Codec<T>::type_name().
template <class T>
std::string codec_type_name() {
  require_codec<T>();
  return Codec<T>::type_name();
}

// `value` is a T or a const T&; what is moved in is given away.
template <class T, class V>
absl::Status encode_value(V&& value, Encoder& encoder, proto::Value& out) {
  require_codec<T>();
  return Codec<T>::encode(std::forward<V>(value), encoder, out);
}

template <class T>
absl::StatusOr<T> decode_value(const proto::Value& in, Decoder& decoder) {
  require_codec<T>();
  return Codec<T>::decode(in, decoder);
}

// "expected a str, got an integer": what decoders say of a value of the wrong kind.
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

// Every other integral type; unsigned 64-bit values travel as the same bits.
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
    // An integer where a real is expected converts as in C++.
    if (in.kind_case() == proto::Value::kInteger) return static_cast<T>(in.integer());
    if (in.kind_case() != proto::Value::kReal) return wrong_kind(type_name(), in);
    return static_cast<T>(in.real());
  }
};

// Enumerations travel as their underlying integer; any value of it is accepted.
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
