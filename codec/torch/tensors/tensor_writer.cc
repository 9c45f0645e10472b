// Each tensor takes one of these ways into the message, the cheapest one that is safe:
// 1. Up to kMaxInlineBytes: its bytes are copied into the envelope.
// 2. Its memory is referred to by no other code (`alone`): the message takes over the memory.
// 3. The caller lends its tensors (TensorSharing::kBorrow): the message refers to the memory, and the
//    transport copies what it has not sent when the call ends.
// 4. Otherwise the bytes are copied now.

#include "gradwire/codec/torch/tensors/tensor_writer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/COW.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/codec/torch/tensors/tensor_memory.h"
#include "gradwire/device/memory_deleter.h"

namespace gradwire::rpc {
namespace {

// Tensors up to this size are sent inside the envelope. A separate buffer costs a captured block, an entry in
// the scatter list and a tensor over foreign memory at the receiver. That is more than copying this number of
// bytes twice.
constexpr int64_t kMaxInlineBytes = 512;

// Dispatch keys of wrappers whose data pointer, if any, does not refer to their content.
const c10::DispatchKeySet kWrappers = c10::DispatchKeySet(
    {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
     c10::DispatchKey::Functionalize, c10::DispatchKey::Batched});

}  // namespace

bool is_alone(const at::Tensor& tensor, std::size_t handles, bool given_away) {
  const c10::Storage& storage = tensor.storage();
  if (tensor.use_count() != handles || storage.use_count() != 1) return false;
  // Copy-on-write storages share memory until one of them is written to.
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) return false;
  // True if libtorch allocated the memory, or if the caller moved the tensor in and the memory has an owner.
  // Memory without an owner (from_blob without a deleter) still belongs to the caller.
  return storage.allocator() != nullptr || (given_away && storage.data_ptr().get_context() != nullptr);
}

absl::Status check_sendable(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::InvalidArgumentError("an undefined tensor cannot be sent here");
  if (tensor.key_set().has_any(kWrappers)) {
    return absl::InvalidArgumentError(
        "a tensor inside a function transform or of a Python subclass cannot be sent");
  }
  if (tensor.is_nested()) return absl::InvalidArgumentError("a nested tensor cannot be sent; send its parts");
  return absl::OkStatus();
}

absl::Status TensorWriter::write(const at::Tensor& tensor, bool given_away, proto::Tensor& out) {
  GRADWIRE_RETURN_IF_ERROR(check_sendable(tensor));
  out.set_dtype(static_cast<uint32_t>(tensor.scalar_type()));
  out.mutable_sizes()->Add(tensor.sizes().begin(), tensor.sizes().end());
  if (tensor.is_quantized()) return write_quantized(tensor, given_away, out);
  switch (tensor.layout()) {
    case at::kStrided:
      return write_strided(tensor, given_away, out);
    case at::kSparse:
      return write_sparse_coo(tensor, out);
    case at::kSparseCsr:
      return write_sparse_csr(tensor, out);
    default:
      return absl::InvalidArgumentError(absl::StrCat("a tensor of layout number ",
                                                     static_cast<int>(tensor.layout()),
                                                     " cannot be sent; use a strided, COO or CSR tensor"));
  }
}

absl::Status TensorWriter::write_strided(const at::Tensor& tensor, bool given_away, proto::Tensor& out) {
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(tensor.sizes(), static_cast<int64_t>(tensor.element_size())));
  if (extent.numel == 0) return absl::OkStatus();
  at::Tensor dense = tensor;
  // These tensors have no memory, or their memory does not have the values that they show.
  if (tensor._is_zerotensor()) {
    dense = at::zeros(tensor.sizes(), tensor.options());
  } else if (tensor.is_conj() || tensor.is_neg()) {
    dense = tensor.resolve_conj().resolve_neg();
  }
  if (!dense.is_non_overlapping_and_dense()) {
    // The elements overlap or have gaps between them: copy them into row-major order.
    GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer memory, allocate_tensor_memory(extent.bytes));
    at::Tensor row_major = tensor_over(std::move(memory), dense.sizes(), {}, dense.scalar_type());
    row_major.copy_(dense);
    dense = std::move(row_major);
  }
  write_layout(dense, extent.numel, out);
  // Two handles are known: the caller's, and `dense` if it is the same tensor.
  const bool alone = !dense.is_same(tensor) || is_alone(tensor, 2, given_away);
  return write_bytes(dense, alone, out);
}

// The memory is sent as it is, with the strides, instead of being copied into row-major order.
void TensorWriter::write_layout(const at::Tensor& dense, int64_t numel, proto::Tensor& out) {
  if (dense.is_contiguous()) return;
  const std::vector<int64_t> strides = portable_strides(dense.sizes(), dense.strides(), numel);
  out.mutable_strides()->Add(strides.begin(), strides.end());
}

absl::Status TensorWriter::write_in_pieces(const at::Tensor& dense, std::size_t piece, proto::Tensor& out) {
  out.set_dtype(static_cast<uint32_t>(dense.scalar_type()));
  out.mutable_sizes()->Add(dense.sizes().begin(), dense.sizes().end());
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(dense.sizes(), static_cast<int64_t>(dense.element_size())));
  write_layout(dense, extent.numel, out);
  const std::shared_ptr<void> owner = share_memory(dense);
  char* const memory = static_cast<char*>(const_cast<void*>(dense.const_data_ptr()));
  const auto size = static_cast<std::size_t>(extent.bytes);
  out.set_buffer(static_cast<uint32_t>(out_.buffers.size() + 1));
  for (std::size_t begin = 0; begin < size; begin += piece)
    out_.buffers.emplace_back(memory + begin, std::min(piece, size - begin), owner);
  const std::size_t count = (size + piece - 1) / piece;
  if (count > 1) out.mutable_on_device()->set_buffers(static_cast<uint32_t>(count));
  return absl::OkStatus();
}

absl::Status TensorWriter::write_part(const at::Tensor& part, proto::Tensor& out) {
  out.set_dtype(static_cast<uint32_t>(part.scalar_type()));
  out.mutable_sizes()->Add(part.sizes().begin(), part.sizes().end());
  const at::Tensor resolved = part.resolve_conj().resolve_neg();
  const at::Tensor row_major = resolved.contiguous();
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(part.sizes(), static_cast<int64_t>(part.element_size())));
  if (extent.numel == 0) return absl::OkStatus();
  // A part is a copy made above, or it shares memory with the tensor and thus is not alone.
  return write_bytes(row_major, !row_major.is_alias_of(part), out);
}

absl::Status TensorWriter::write_bytes(const at::Tensor& dense, bool alone, proto::Tensor& out) {
  const std::size_t size = static_cast<std::size_t>(dense.numel()) * dense.element_size();
  const void* data = dense.const_data_ptr();
  alone = alone || in_transit_;
  if (data == nullptr) return absl::InvalidArgumentError("a tensor without memory cannot be sent");
  if (size <= kMaxInlineBytes && !in_transit_) {
    out.set_inline_data(data, size);
    return absl::OkStatus();
  }
  using Sharing = transport::Buffer::Sharing;
  // The transport only reads the memory. const_data_ptr() above does not copy lazily copied storages.
  void* const memory = const_cast<void*>(data);
  // Only if the tensor covers its whole storage: a part of a storage must not be passed on as if it were
  // all.
  if (std::shared_ptr<void> owner =
          alone && size == dense.storage().nbytes() ? memory_owner(dense) : nullptr) {
    // The buffer keeps the owner that the transport gave it. If it is in memory that the receiver can see
    // too, it is not copied.
    out_.buffers.emplace_back(memory, size, std::move(owner), Sharing::kOwned);
  } else if (alone || sharing_ == TensorSharing::kBorrow) {
    out_.buffers.emplace_back(memory, size, share_memory(dense),
                              alone ? Sharing::kOwned : Sharing::kBorrowed);
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer copy, allocate_tensor_memory(size));
    std::memcpy(copy.data(), data, size);
    out_.buffers.push_back(std::move(copy));
  }
  out.set_buffer(static_cast<uint32_t>(out_.buffers.size()));
  return absl::OkStatus();
}

// It owns the memory but not the tensor, to which a graph of the program may belong. The thread that drops it
// may be on duty, or have frames of the program below it which hold a mutex. So memory with a deleter of the
// program (from_blob) is released on the executor.
std::shared_ptr<void> TensorWriter::share_memory(const at::Tensor& tensor) const {
  const c10::Storage& storage = tensor.storage();
  auto owner = std::make_shared<c10::Storage>(storage);
  if (!device::has_own_deleter(storage)) return owner;
  std::shared_ptr<Executor> executor = out_.executor != nullptr ? out_.executor : adopted_executor();
  if (executor == nullptr) return owner;
  void* const key = owner.get();
  return {key, [owner = std::move(owner), executor = std::move(executor)](void*) mutable {
            executor->post_or_run([owner = std::move(owner)] {});
          }};
}

// Writes tensors that consist of other tensors: sparse and quantized ones.

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
