#pragma once

#include <complex>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "gradwire/codec/codec.h"

namespace gradwire::rpc {

// The result of a function that returns void.
template <>
struct Codec<std::monostate> {
  static std::string type_name() { return "void"; }
  static absl::Status encode(std::monostate, Encoder&, proto::Value& out) {
    out.set_none(true);
    return absl::OkStatus();
  }
  static absl::StatusOr<std::monostate> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kNone) return wrong_kind("void", in);
    return std::monostate();
  }
};

template <class T>
struct Codec<std::complex<T>> {
  static std::string type_name() { return absl::StrCat("complex", 16 * sizeof(T)); }
  static absl::Status encode(const std::complex<T>& value, Encoder&, proto::Value& out) {
    out.mutable_complex()->set_real(value.real());
    out.mutable_complex()->set_imaginary(value.imag());
    return absl::OkStatus();
  }
  static absl::StatusOr<std::complex<T>> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kComplex) return wrong_kind(type_name(), in);
    return std::complex<T>(static_cast<T>(in.complex().real()), static_cast<T>(in.complex().imaginary()));
  }
};

// The elements of a list or of a tuple; nullptr for other kinds. Only IValues distinguish lists and tuples.
inline const proto::ValueList* elements_of(const proto::Value& in) {
  if (in.kind_case() == proto::Value::kList) return &in.list();
  if (in.kind_case() == proto::Value::kTuple) return &in.tuple();
  return nullptr;
}

// An optional is sent as a list of zero or one elements, so that optional<optional<T>> is unambiguous.
// decode() also accepts the forms that IValues produce: none, or the value itself if it is not a list.
template <class T>
struct Codec<std::optional<T>> {
  static std::string type_name() { return absl::StrCat("optional[", codec_type_name<T>(), "]"); }
  template <class V>
  static absl::Status encode(V&& value, Encoder& encoder, proto::Value& out) {
    proto::ValueList& list = *out.mutable_list();
    if (!value.has_value()) return absl::OkStatus();
    return encode_value<T>(*std::forward<V>(value), encoder, *list.add_values());
  }
  static absl::StatusOr<std::optional<T>> decode(const proto::Value& in, Decoder& decoder) {
    if (in.kind_case() == proto::Value::kNone) return std::optional<T>();
    if (in.kind_case() == proto::Value::kList) {
      if (in.list().values_size() > 1) return wrong_kind(type_name(), in);
      if (in.list().values_size() == 0) return std::optional<T>();
    }
    const proto::Value& present = in.kind_case() == proto::Value::kList ? in.list().values(0) : in;
    GRADWIRE_ASSIGN_OR_RETURN(T value, decode_value<T>(present, decoder));
    return std::optional<T>(std::move(value));
  }
};

namespace codec_internal {

// Forwards a part of `Whole`: as an rvalue if the whole is an rvalue, else as const&.
template <class Whole, class Part>
decltype(auto) forward_part(Part& part) {
  if constexpr (std::is_lvalue_reference_v<Whole>) {
    return static_cast<const Part&>(part);
  } else {
    return std::move(part);
  }
}

template <class Tuple, std::size_t... I>
std::string tuple_name(std::index_sequence<I...>) {
  std::string name = "tuple[";
  (absl::StrAppend(&name, I == 0 ? "" : ",", codec_type_name<std::tuple_element_t<I, Tuple>>()), ...);
  return name + "]";
}

template <class Tuple>
struct TupleCodec {
  static constexpr std::size_t kSize = std::tuple_size_v<Tuple>;
  using Indices = std::make_index_sequence<kSize>;

  static std::string type_name() { return tuple_name<Tuple>(Indices()); }

  template <class V>
  static absl::Status encode(V&& value, Encoder& encoder, proto::Value& out) {
    proto::ValueList& list = *out.mutable_list();
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      absl::Status status;
      (void)((status = encode_value<std::tuple_element_t<I, Tuple>>(forward_part<V>(std::get<I>(value)),
                                                                    encoder, *list.add_values()),
              status.ok()) &&
             ...);
      return status;
    }
    (Indices());
  }

  static absl::StatusOr<Tuple> decode(const proto::Value& in, Decoder& decoder) {
    const proto::ValueList* list = elements_of(in);
    if (list == nullptr || static_cast<std::size_t>(list->values_size()) != kSize)
      return wrong_kind(type_name(), in);
    return [&]<std::size_t... I>(std::index_sequence<I...>)->absl::StatusOr<Tuple> {
      absl::Status status;
      std::tuple<std::optional<std::tuple_element_t<I, Tuple>>...> parts;
      [[maybe_unused]] auto decode_one = [&]<std::size_t J>(std::integral_constant<std::size_t, J>) {
        auto part = decode_value<std::tuple_element_t<J, Tuple>>(list->values(J), decoder);
        if (!part.ok()) {
          status = part.status();
          return false;
        }
        std::get<J>(parts).emplace(*std::move(part));
        return true;
      };
      if (!(decode_one(std::integral_constant<std::size_t, I>()) && ...)) return status;
      return Tuple(*std::move(std::get<I>(parts))...);
    }
    (Indices());
  }
};

template <class Map>
struct MapCodec {
  using Key = typename Map::key_type;
  using Mapped = typename Map::mapped_type;

  static std::string type_name() {
    return absl::StrCat("map[", codec_type_name<Key>(), ",", codec_type_name<Mapped>(), "]");
  }
  template <class V>
  static absl::Status encode(V&& value, Encoder& encoder, proto::Value& out) {
    proto::ValueMap& map = *out.mutable_map();
    for (auto& [key, mapped] : value) {
      GRADWIRE_RETURN_IF_ERROR(encode_value<Key>(key, encoder, *map.add_keys()));
      GRADWIRE_RETURN_IF_ERROR(encode_value<Mapped>(forward_part<V>(mapped), encoder, *map.add_values()));
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<Map> decode(const proto::Value& in, Decoder& decoder) {
    if (in.kind_case() != proto::Value::kMap || in.map().keys_size() != in.map().values_size()) {
      return wrong_kind(type_name(), in);
    }
    Map map;
    for (int i = 0; i < in.map().keys_size(); ++i) {
      GRADWIRE_ASSIGN_OR_RETURN(Key key, decode_value<Key>(in.map().keys(i), decoder));
      GRADWIRE_ASSIGN_OR_RETURN(Mapped mapped, decode_value<Mapped>(in.map().values(i), decoder));
      map.insert_or_assign(std::move(key), std::move(mapped));
    }
    return map;
  }
};

}  // namespace codec_internal

template <class A, class B>
struct Codec<std::pair<A, B>> : codec_internal::TupleCodec<std::pair<A, B>> {};
template <class... A>
struct Codec<std::tuple<A...>> : codec_internal::TupleCodec<std::tuple<A...>> {};
template <class K, class V, class... Rest>
struct Codec<std::map<K, V, Rest...>> : codec_internal::MapCodec<std::map<K, V, Rest...>> {};
template <class K, class V, class... Rest>
struct Codec<std::unordered_map<K, V, Rest...>>
    : codec_internal::MapCodec<std::unordered_map<K, V, Rest...>> {};

// Integers and reals are sent as packed fields, all other element types as a list.
template <class T>
struct Codec<std::vector<T>> {
  static constexpr bool kPackedIntegers = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  static constexpr bool kPackedReals = std::is_floating_point_v<T>;

  static std::string type_name() { return absl::StrCat("list[", codec_type_name<T>(), "]"); }

  template <class V>
  static absl::Status encode(V&& value, Encoder& encoder, proto::Value& out) {
    if constexpr (kPackedIntegers) {
      out.mutable_integers()->mutable_values()->Add(value.begin(), value.end());
    } else if constexpr (kPackedReals) {
      out.mutable_reals()->mutable_values()->Add(value.begin(), value.end());
    } else {
      proto::ValueList& list = *out.mutable_list();
      for (auto&& element : value) {
        if constexpr (std::is_same_v<T, bool>) {
          list.add_values()->set_boolean(element);
        } else {
          GRADWIRE_RETURN_IF_ERROR(
              encode_value<T>(codec_internal::forward_part<V>(element), encoder, *list.add_values()));
        }
      }
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<std::vector<T>> decode(const proto::Value& in, Decoder& decoder) {
    std::vector<T> values;
    if constexpr (kPackedIntegers) {
      if (in.kind_case() != proto::Value::kIntegers) return wrong_kind(type_name(), in);
      values.reserve(in.integers().values_size());
      for (int64_t element : in.integers().values()) {
        if (static_cast<int64_t>(static_cast<T>(element)) != element) {
          return absl::InvalidArgumentError(
              absl::StrCat(element, " does not fit into ", codec_type_name<T>()));
        }
        values.push_back(static_cast<T>(element));
      }
    } else if constexpr (kPackedReals) {
      if (in.kind_case() != proto::Value::kReals) return wrong_kind(type_name(), in);
      values.assign(in.reals().values().begin(), in.reals().values().end());
    } else {
      const proto::ValueList* list = elements_of(in);
      if (list == nullptr) return wrong_kind(type_name(), in);
      values.reserve(list->values_size());
      for (const proto::Value& element : list->values()) {
        GRADWIRE_ASSIGN_OR_RETURN(T value, decode_value<T>(element, decoder));
        values.push_back(std::move(value));
      }
    }
    return values;
  }
};

template <>
struct Codec<absl::Status> {
  static std::string type_name() { return "Status"; }
  static absl::Status encode(const absl::Status& value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<absl::Status> decode(const proto::Value& in, Decoder& decoder);
};

// Protobuf messages; the full name of the message type is sent with the bytes.
template <class T>
struct Codec<T, std::enable_if_t<std::is_base_of_v<google::protobuf::MessageLite, T>>> {
  static std::string type_name() { return absl::StrCat("message[", T().GetTypeName(), "]"); }
  static absl::Status encode(const T& value, Encoder&, proto::Value& out) {
    out.mutable_message()->set_type(value.GetTypeName());
    if (!value.SerializeToString(out.mutable_message()->mutable_serialized())) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot serialise a message of type ", value.GetTypeName()));
    }
    return absl::OkStatus();
  }
  static absl::StatusOr<T> decode(const proto::Value& in, Decoder&) {
    T value;
    if (in.kind_case() != proto::Value::kMessage || in.message().type() != value.GetTypeName()) {
      return wrong_kind(type_name(), in);
    }
    if (!value.ParseFromString(in.message().serialized())) {
      return absl::InvalidArgumentError(absl::StrCat("cannot parse a message of type ", value.GetTypeName()));
    }
    return value;
  }
};

void status_to_proto(const absl::Status& status, proto::StatusValue& out);
// An unknown code becomes Unknown; a nonzero code never becomes OK.
absl::Status status_from_proto(const proto::StatusValue& in);

}  // namespace gradwire::rpc
