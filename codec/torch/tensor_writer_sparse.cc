// Writes tensors that consist of other tensors: sparse and quantized ones.
#include <ATen/core/Tensor.h>
#include <ATen/quantized/QTensorImpl.h>

#include <cstdint>

#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_memory.h"
#include "gradwire/codec/torch/tensor_writer.h"

namespace gradwire::rpc {

absl::Status TensorWriter::write_sparse_coo(const at::Tensor& tensor, proto::Tensor& out) {
  out.set_kind(proto::Tensor::SPARSE_COO);
  out.set_coalesced(tensor.is_coalesced());
  GRADWIRE_RETURN_IF_ERROR(write_part(tensor._indices(), *out.add_parts()));
  return write_part(tensor._values(), *out.add_parts());
}

absl::Status TensorWriter::write_sparse_csr(const at::Tensor& tensor, proto::Tensor& out) {
  out.set_kind(proto::Tensor::SPARSE_CSR);
  GRADWIRE_RETURN_IF_ERROR(write_part(tensor.crow_indices(), *out.add_parts()));
  GRADWIRE_RETURN_IF_ERROR(write_part(tensor.col_indices(), *out.add_parts()));
  return write_part(tensor.values(), *out.add_parts());
}

absl::Status TensorWriter::write_quantized(const at::Tensor& tensor, bool given_away, proto::Tensor& out) {
  out.set_kind(proto::Tensor::QUANTIZED);
  at::ScalarType underlying = c10::toUnderlying(tensor.scalar_type());
  if (tensor.scalar_type() == at::kQUInt4x2 || tensor.scalar_type() == at::kQUInt2x4) {
    return absl::InvalidArgumentError("a quantized tensor with less than 8 bits per element cannot be sent");
  }
  switch (tensor.qscheme()) {
    case at::kPerTensorAffine:
    case at::kPerTensorSymmetric:
      out.mutable_quantization()->set_scale(tensor.q_scale());
      out.mutable_quantization()->set_zero_point(tensor.q_zero_point());
      break;
    case at::kPerChannelAffine:
    case at::kPerChannelSymmetric:
      // 0 means "per tensor", so the axis is stored plus one.
      out.mutable_quantization()->set_channel_axis(static_cast<uint32_t>(tensor.q_per_channel_axis() + 1));
      GRADWIRE_RETURN_IF_ERROR(write_part(tensor.q_per_channel_scales().to(at::kDouble), *out.add_parts()));
      GRADWIRE_RETURN_IF_ERROR(
          write_part(tensor.q_per_channel_zero_points().to(at::kLong), *out.add_parts()));
      break;
    default:
      return absl::InvalidArgumentError("a tensor quantized with floating-point zero points cannot be sent");
  }
  // The alias below also holds the storage, so write_strided() treats a quantized tensor as shared and copies
  // it.
  return write_strided(reinterpret(tensor, underlying), given_away, out);
}

}  // namespace gradwire::rpc
