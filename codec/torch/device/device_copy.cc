#include "gradwire/codec/torch/device/device_copy.h"

#include <ATen/Context.h>
#include <ATen/ops/_indices.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/_values.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "gradwire/codec/torch/tensor_writer.h"

namespace gradwire::rpc {
namespace {

// Large enough that the cost of a copy does not matter, small enough that the first piece is on its way
// early.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// A tensor on the host that a device can copy to and from without help of the thread, if the kind of device
// has such memory.
at::Tensor pinned_like(const at::Tensor& tensor, c10::DeviceType device) {
  at::TensorOptions options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (at::globalContext().getAcceleratorHooksInterface(device).isAvailable())
    options = options.pinned_memory(true);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// Applies `copy`, which takes a strided tensor, to the tensor or to the parts of a sparse one.
template <class Copy>
at::Tensor copy_parts(const at::Tensor& tensor, const at::TensorOptions& options, Copy copy) {
  switch (tensor.layout()) {
    case at::kStrided:
      return copy(tensor);
    case at::kSparse: {
      at::Tensor made = at::_sparse_coo_tensor_unsafe(
          copy(tensor._indices().contiguous()), copy(tensor._values().contiguous()), tensor.sizes(), options);
      return made._coalesced_(tensor.is_coalesced());
    }
    case at::kSparseCsr:
      return at::_sparse_csr_tensor_unsafe(copy(tensor.crow_indices()), copy(tensor.col_indices()),
                                           copy(tensor.values()), tensor.sizes(), options);
    default:
      TORCH_CHECK_VALUE(false, "a tensor of layout ", tensor.layout(), " cannot be sent from a device");
  }
}

// The tensor with its own values in memory without gaps, computed on its device.
at::Tensor dense(const at::Tensor& tensor) {
  const at::Tensor resolved = tensor.resolve_conj().resolve_neg();
  return resolved.is_non_overlapping_and_dense() ? resolved : resolved.contiguous();
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  return copy_parts(tensor, tensor.options().device(at::kCPU), [](const at::Tensor& part) {
    const at::Tensor source = dense(part);
    at::Tensor host = pinned_like(source, source.device().type());
    host.copy_(source, /*non_blocking=*/true);
    return host;
  });
}

// The bytes go to memory that the device reads by itself, in pieces: while one piece travels to the device,
// this thread copies the next one. The allocator of that memory keeps each piece until the device has read
// it.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  const c10::DeviceGuard guard(device);
  return copy_parts(tensor, tensor.options().device(device), [device](const at::Tensor& part) {
    at::Tensor made = at::empty_strided(part.sizes(), part.strides(), part.options().device(device));
    // The tensors have no gaps, so their elements are one row in memory.
    const int64_t count = part.numel();
    const at::Tensor from = part.as_strided({count}, {1});
    const at::Tensor to = made.as_strided({count}, {1});
    const int64_t piece = std::max<int64_t>(kPieceBytes / static_cast<int64_t>(part.element_size()), 1);
    for (int64_t begin = 0; begin < count; begin += piece) {
      const at::Tensor source = from.narrow(0, begin, std::min(piece, count - begin));
      at::Tensor staged = pinned_like(source, device.type());
      std::memcpy(staged.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
      to.narrow(0, begin, source.numel()).copy_(staged, /*non_blocking=*/true);
    }
    return made;
  });
}

// Memory that the allocator does not know cannot be kept until a stream has passed a point. Elements that
// share memory, as in an expanded tensor, could not be changed.
at::Tensor to_pass_on(const at::Tensor& tensor) {
  const bool alone = tensor.layout() == at::kStrided && is_alone(tensor, 1, /*given_away=*/false) &&
                     tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
  return alone ? tensor.detach() : snapshot(tensor);
}

at::Tensor snapshot(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  return copy_parts(tensor, tensor.options(), [](const at::Tensor& part) {
    const at::Tensor source = dense(part);
    // resolve_conj() and the like may have made a copy already.
    return source.is_alias_of(part) ? source.clone() : source;
  });
}

}  // namespace gradwire::rpc
