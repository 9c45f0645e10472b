#include "gradwire/codec/torch/tensor_codec.h"

#include <exception>
#include <limits>
#include <utility>

#include "gradwire/codec/torch/tensors/torch_tensors.h"

namespace gradwire::rpc {
namespace {

// A value refers to a tensor by its index in the message. All tensors are encoded together later
// (tensor_backend.cc), when the graph is known. `give_away`: the caller has moved the tensor in, so its
// memory may be taken over.
absl::Status add_tensor(at::Tensor tensor, bool give_away, Encoder& encoder, proto::Value& out) {
  if (!tensor.defined()) {
    out.set_undefined_tensor(true);
    return absl::OkStatus();
  }
  const std::size_t index = encoder.tensors<TorchTensors>().add(std::move(tensor), give_away);
  if (index > std::numeric_limits<uint32_t>::max())
    return absl::InvalidArgumentError("too many tensors in one message");
  out.set_tensor(static_cast<uint32_t>(index));
  return absl::OkStatus();
}

// Decodes an enumerator from a value of its own kind, with the number `own`, or from an integer.
template <class Enum>
absl::StatusOr<Enum> enumerator_of(const proto::Value& in, proto::Value::KindCase kind, uint32_t own,
                                   absl::string_view name) {
  int64_t number = own;
  if (in.kind_case() == proto::Value::kInteger) {
    number = in.integer();
  } else if (in.kind_case() != kind) {
    return wrong_kind(name, in);
  }
  if (number < 0 || number >= static_cast<int64_t>(Enum::NumOptions)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown ", name, ": got the number ", number));
  }
  return static_cast<Enum>(number);
}

}  // namespace

absl::Status Codec<at::Tensor>::encode(const at::Tensor& tensor, Encoder& encoder, proto::Value& out) {
  return add_tensor(tensor, false, encoder, out);
}

absl::Status Codec<at::Tensor>::encode(at::Tensor&& tensor, Encoder& encoder, proto::Value& out) {
  return add_tensor(std::move(tensor), true, encoder, out);
}

absl::StatusOr<at::Tensor> Codec<at::Tensor>::decode(const proto::Value& in, Decoder& decoder) {
  if (in.kind_case() == proto::Value::kUndefinedTensor) return at::Tensor();
  if (in.kind_case() != proto::Value::kTensor) return wrong_kind("Tensor", in);
  const auto* set = decoder.tensors<TorchTensors>();
  // The index comes from the peer.
  if (set == nullptr || in.tensor() >= set->tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the tensor index ", in.tensor(), " is out of range"));
  }
  return set->tensors[in.tensor()];
}

uint64_t Codec<at::Tensor>::byte_size(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  switch (tensor.layout()) {
    case at::kStrided:
      return tensor.nbytes();
    case at::kSparse:
      return tensor._indices().nbytes() + tensor._values().nbytes();
    case at::kSparseCsr:
      return tensor.crow_indices().nbytes() + tensor.col_indices().nbytes() + tensor.values().nbytes();
    default:
      return 0;
  }
}

absl::Status Codec<c10::Scalar>::encode(const c10::Scalar& value, Encoder&, proto::Value& out) {
  if (value.isSymbolic()) return absl::InvalidArgumentError("a symbolic Scalar cannot be sent");
  if (value.isBoolean()) {
    out.set_boolean(value.toBool());
  } else if (value.isComplex()) {
    const auto number = value.toComplexDouble();
    out.mutable_complex()->set_real(number.real());
    out.mutable_complex()->set_imaginary(number.imag());
  } else if (value.isFloatingPoint()) {
    out.set_real(value.toDouble());
    // Integers travel as int64.
  } else if (value.type() == c10::ScalarType::UInt64) {
    return absl::InvalidArgumentError(
        absl::StrCat("the Scalar ", value.toUInt64(), " cannot be sent: the largest integer is 2^63 - 1"));
  } else {
    out.set_integer(value.toLong());
  }
  return absl::OkStatus();
}

absl::StatusOr<c10::Scalar> Codec<c10::Scalar>::decode(const proto::Value& in, Decoder&) {
  switch (in.kind_case()) {
    case proto::Value::kBoolean:
      return c10::Scalar(in.boolean());
    case proto::Value::kInteger:
      return c10::Scalar(static_cast<int64_t>(in.integer()));
    case proto::Value::kReal:
      return c10::Scalar(in.real());
    case proto::Value::kComplex:
      return c10::Scalar(c10::complex<double>(in.complex().real(), in.complex().imaginary()));
    default:
      return wrong_kind("Scalar", in);
  }
}

absl::Status Codec<c10::ScalarType>::encode(c10::ScalarType value, Encoder&, proto::Value& out) {
  out.set_dtype(static_cast<uint32_t>(value));
  return absl::OkStatus();
}

absl::StatusOr<c10::ScalarType> Codec<c10::ScalarType>::decode(const proto::Value& in, Decoder&) {
  return enumerator_of<c10::ScalarType>(in, proto::Value::kDtype, in.dtype(), type_name());
}

absl::Status Codec<c10::Layout>::encode(c10::Layout value, Encoder&, proto::Value& out) {
  out.set_layout(static_cast<uint32_t>(value));
  return absl::OkStatus();
}

absl::StatusOr<c10::Layout> Codec<c10::Layout>::decode(const proto::Value& in, Decoder&) {
  return enumerator_of<c10::Layout>(in, proto::Value::kLayout, in.layout(), type_name());
}

absl::Status Codec<c10::MemoryFormat>::encode(c10::MemoryFormat value, Encoder&, proto::Value& out) {
  out.set_memory_format(static_cast<uint32_t>(value));
  return absl::OkStatus();
}

absl::StatusOr<c10::MemoryFormat> Codec<c10::MemoryFormat>::decode(const proto::Value& in, Decoder&) {
  return enumerator_of<c10::MemoryFormat>(in, proto::Value::kMemoryFormat, in.memory_format(), type_name());
}

absl::Status Codec<c10::Device>::encode(const c10::Device& value, Encoder&, proto::Value& out) {
  out.set_device(value.str());
  return absl::OkStatus();
}

absl::StatusOr<c10::Device> Codec<c10::Device>::decode(const proto::Value& in, Decoder&) {
  if (in.kind_case() != proto::Value::kDevice) return wrong_kind("Device", in);
  // libtorch's parser reports errors with exceptions. Its longest device names are far shorter than this
  // limit.
  if (in.device().size() > 64) return absl::InvalidArgumentError("a device name is too long");
  try {
    return c10::Device(in.device());
  } catch (const std::exception&) {  // c10::Error, or what std::stoi throws.
    return absl::InvalidArgumentError(absl::StrCat("unknown device \"", in.device(), "\""));
  }
}

}  // namespace gradwire::rpc
