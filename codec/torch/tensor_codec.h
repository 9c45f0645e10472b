#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include <cstdint>
#include <string>

#include "gradwire/codec/codec.h"

namespace gradwire::rpc {

template <>
inline constexpr bool kRunsNoUserCode<at::Tensor> = true;

// A tensor; may be undefined. A tensor that is moved in is consumed: if its memory has no other owner, it is
// sent without a copy. A received tensor owns its memory, may be modified and resized, and is a leaf.
template <>
struct Codec<at::Tensor> {
  static std::string type_name() { return "Tensor"; }
  static absl::Status encode(const at::Tensor& tensor, Encoder& encoder, proto::Value& out);
  static absl::Status encode(at::Tensor&& tensor, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<at::Tensor> decode(const proto::Value& in, Decoder& decoder);
  // The bytes of its elements, and of the indices of a sparse tensor; 0 for a tensor that cannot be sent.
  static uint64_t byte_size(const at::Tensor& tensor);
};

// A number of either kind: integer, real, complex or bool.
template <>
struct Codec<c10::Scalar> {
  static std::string type_name() { return "Scalar"; }
  static absl::Status encode(const c10::Scalar& value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::Scalar> decode(const proto::Value& in, Decoder& decoder);
};

// The next three types are also decoded from an integer, because IValues store them as integers.
template <>
struct Codec<c10::ScalarType> {
  static std::string type_name() { return "ScalarType"; }
  static absl::Status encode(c10::ScalarType value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::ScalarType> decode(const proto::Value& in, Decoder& decoder);
};

template <>
struct Codec<c10::Layout> {
  static std::string type_name() { return "Layout"; }
  static absl::Status encode(c10::Layout value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::Layout> decode(const proto::Value& in, Decoder& decoder);
};

template <>
struct Codec<c10::MemoryFormat> {
  static std::string type_name() { return "MemoryFormat"; }
  static absl::Status encode(c10::MemoryFormat value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::MemoryFormat> decode(const proto::Value& in, Decoder& decoder);
};

template <>
struct Codec<c10::Device> {
  static std::string type_name() { return "Device"; }
  static absl::Status encode(const c10::Device& value, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<c10::Device> decode(const proto::Value& in, Decoder& decoder);
};

template <class T>
struct Codec<c10::complex<T>> {
  static std::string type_name() { return absl::StrCat("complex", 16 * sizeof(T)); }
  static absl::Status encode(const c10::complex<T>& value, Encoder&, proto::Value& out) {
    out.mutable_complex()->set_real(value.real());
    out.mutable_complex()->set_imaginary(value.imag());
    return absl::OkStatus();
  }
  static absl::StatusOr<c10::complex<T>> decode(const proto::Value& in, Decoder&) {
    if (in.kind_case() != proto::Value::kComplex) return wrong_kind(type_name(), in);
    return c10::complex<T>(static_cast<T>(in.complex().real()), static_cast<T>(in.complex().imaginary()));
  }
};

}  // namespace gradwire::rpc
