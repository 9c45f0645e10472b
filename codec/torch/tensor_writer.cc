#include "gradwire/codec/torch/tensor_writer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/COW.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_layout.h"
#include "gradwire/codec/torch/tensor_memory.h"

namespace gradwire::rpc {
namespace {

// Tensors up to this size travel inside the envelope: a buffer of its own costs a captured block, an entry in
// the scatter list and a tensor over foreign memory on the other side, which is more than copying this many
// bytes twice.
constexpr int64_t kMaxInlineBytes = 512;

// Wrappers whose data pointer, if any, is not their content.
const c10::DispatchKeySet kWrappers = c10::DispatchKeySet(
    {c10::DispatchKey::Python, c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
     c10::DispatchKey::Functionalize, c10::DispatchKey::Batched});

// Whether nobody but holders of `handles` handles to this tensor can reach its memory.
bool is_alone(const at::Tensor& tensor, std::size_t handles, bool given_away) {
  const c10::Storage& storage = tensor.storage();
  if (tensor.use_count() != handles || storage.use_count() != 1) return false;
  // Storages that share memory until one of them is written to.
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) return false;
  // libtorch allocated it, or the caller gave away what did together with the tensor; memory that nothing
  // frees is still his.
  return storage.allocator() != nullptr || (given_away && storage.data_ptr().get_context() != nullptr);
}

}  // namespace

absl::Status TensorWriter::write(const at::Tensor& tensor, bool given_away, proto::Tensor& out) {
  if (!tensor.defined()) return absl::InvalidArgumentError("an undefined tensor cannot travel here");
  if (!tensor.device().is_cpu()) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor on device ", tensor.device().str(),
                                                   " cannot travel: move it to the cpu first"));
  }
  const c10::DispatchKeySet keys = tensor.key_set();
  if (keys.has_any(kWrappers)) {
    return absl::InvalidArgumentError(
        "a tensor inside a function transform or of a Python subclass cannot travel");
  }
  if (tensor.is_nested()) return absl::InvalidArgumentError("a nested tensor cannot travel: send its parts");
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
                                                     " cannot travel, only strided, COO and CSR ones"));
  }
}

absl::Status TensorWriter::write_strided(const at::Tensor& tensor, bool given_away, proto::Tensor& out) {
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(tensor.sizes(), static_cast<int64_t>(tensor.element_size())));
  if (extent.numel == 0) return absl::OkStatus();
  at::Tensor dense = tensor;
  if (tensor._is_zerotensor()) {
    dense = at::zeros(tensor.sizes(), tensor.options());
  } else if (tensor.is_conj() || tensor.is_neg()) {
    dense = tensor.resolve_conj().resolve_neg();
  }
  if (!dense.is_contiguous()) {
    if (dense.is_non_overlapping_and_dense()) {
      const std::vector<int64_t> strides = portable_strides(dense.sizes(), dense.strides(), extent.numel);
      out.mutable_strides()->Add(strides.begin(), strides.end());
    } else {
      GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer memory, allocate_tensor_memory(extent.bytes));
      at::Tensor row_major = tensor_over(std::move(memory), dense.sizes(), {}, dense.scalar_type());
      row_major.copy_(dense);
      dense = std::move(row_major);
    }
  }
  // The handles are the caller's and `dense`, if that is the same.
  const bool alone = !dense.is_same(tensor) || is_alone(tensor, 2, given_away);
  return write_bytes(dense, alone, out);
}

absl::Status TensorWriter::write_part(const at::Tensor& part, proto::Tensor& out) {
  out.set_dtype(static_cast<uint32_t>(part.scalar_type()));
  out.mutable_sizes()->Add(part.sizes().begin(), part.sizes().end());
  const at::Tensor resolved = part.resolve_conj().resolve_neg();
  const at::Tensor row_major = resolved.contiguous();
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(part.sizes(), static_cast<int64_t>(part.element_size())));
  if (extent.numel == 0) return absl::OkStatus();
  return write_bytes(row_major, !row_major.is_alias_of(part), out);
}

absl::Status TensorWriter::write_bytes(const at::Tensor& dense, bool alone, proto::Tensor& out) {
  const std::size_t size = static_cast<std::size_t>(dense.numel()) * dense.element_size();
  const void* data = dense.const_data_ptr();
  if (data == nullptr) return absl::InvalidArgumentError("a tensor without memory cannot travel");
  if (size <= kMaxInlineBytes) {
    out.set_inline_data(data, size);
    return absl::OkStatus();
  }
  using Sharing = transport::Buffer::Sharing;
  // The transport only reads; const_data_ptr() above keeps lazily copied storages shared.
  void* const memory = const_cast<void*>(data);
  if (std::shared_ptr<void> owner =
          alone && size == dense.storage().nbytes() ? memory_owner(dense) : nullptr) {
    // As the transport made it: where it lies in memory that the receiver sees too, it need not be copied.
    buffers_.emplace_back(memory, size, std::move(owner), Sharing::kOwned);
  } else if (alone || sharing_ == TensorSharing::kBorrow) {
    buffers_.emplace_back(memory, size, std::make_shared<at::Tensor>(dense),
                          alone ? Sharing::kOwned : Sharing::kBorrowed);
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer copy, allocate_tensor_memory(size));
    std::memcpy(copy.data(), data, size);
    buffers_.push_back(std::move(copy));
  }
  out.set_buffer(static_cast<uint32_t>(buffers_.size()));
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
