#include "gradwire/codec/torch/device/device_copy.h"

#include <ATen/Context.h>
#include <ATen/ops/_indices.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/_values.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "gradwire/base/log/log.h"
#include "gradwire/codec/torch/tensors/tensor_writer.h"
#include "gradwire/device/device_fence.h"

namespace gradwire::rpc {
namespace {

// The system limits how much memory can be pinned. Logged once per process, because all copies then take
// longer, and block threads.
void log_unpinned(const c10::Error& error) {
  static std::atomic<bool> logged{false};
  if (logged.exchange(true)) return;
  log(LogLevel::kWarning, "memory of the host could not be pinned: ", error.what_without_backtrace(),
      "; copies from and to devices use other memory, and the threads that make them wait for the device");
}

// A tensor on the host that a device can copy to and from without help of the thread, if the kind of device
// and the system offer such memory.
at::Tensor pinned_like(const at::Tensor& tensor, c10::DeviceType device) {
  const at::TensorOptions options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (at::globalContext().getAcceleratorHooksInterface(device).isAvailable()) {
    try {
      return at::empty_strided(tensor.sizes(), tensor.strides(), options.pinned_memory(true));
    } catch (const c10::Error& error) {
      log_unpinned(error);
    }
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

// Enqueues a copy from a device to `host`, which pinned_like() has made. Only pinned memory may be freed
// before the copy has ended, so the thread waits if it is other memory.
void copy_to_host(const at::Tensor& host, const at::Tensor& source, bool pinned) {
  host.copy_(source, /*non_blocking=*/pinned);
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

// The elements of a tensor without gaps as one row, in the order of its memory.
at::Tensor as_row(const at::Tensor& dense) { return dense.as_strided({dense.numel()}, {1}); }

// Enqueues a copy of the bytes of whole elements to `row`, from its element `begin` on. Returns their number.
// The bytes go to memory that the device reads by itself, in pieces: while one piece travels to the device,
// this thread copies the next one. The allocator of that memory keeps each piece until the device has read
// it.
int64_t copy_to_row(const at::Tensor& row, int64_t begin, const void* bytes, std::size_t size) {
  const std::size_t element = row.element_size();
  for (std::size_t done = 0; done < size; done += kPieceBytes) {
    const std::size_t piece = std::min(kPieceBytes, size - done);
    const at::Tensor to =
        row.narrow(0, begin + static_cast<int64_t>(done / element), static_cast<int64_t>(piece / element));
    at::Tensor staged = pinned_like(to, row.device().type());
    std::memcpy(staged.mutable_data_ptr(), static_cast<const char*>(bytes) + done, piece);
    to.copy_(staged, /*non_blocking=*/true);
  }
  return static_cast<int64_t>(size / element);
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  return copy_parts(tensor, tensor.options().device(at::kCPU), [](const at::Tensor& part) {
    const at::Tensor source = dense(part);
    at::Tensor host = pinned_like(source, source.device().type());
    copy_to_host(host, source, host.is_pinned());
    return host;
  });
}

bool has_pieces(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided &&
         static_cast<std::size_t>(tensor.numel()) * tensor.element_size() > kPieceBytes;
}

PiecesOnHost to_host_in_pieces(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  const at::Tensor source = dense(tensor);
  PiecesOnHost made{pinned_like(source, source.device().type()), {}};
  const at::Tensor from = as_row(source), to = as_row(made.tensor);
  const bool pinned = made.tensor.is_pinned();
  const auto piece = static_cast<int64_t>(kPieceBytes / source.element_size());
  for (int64_t begin = 0; begin < from.numel(); begin += piece) {
    const int64_t count = std::min(piece, from.numel() - begin);
    copy_to_host(to.narrow(0, begin, count), from.narrow(0, begin, count), pinned);
    made.copied.push_back(device::DeviceFence::record_for({source}));
  }
  return made;
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  const c10::DeviceGuard guard(device);
  return copy_parts(tensor, tensor.options().device(device), [device](const at::Tensor& part) {
    at::Tensor made = at::empty_strided(part.sizes(), part.strides(), part.options().device(device));
    // The tensors have no gaps.
    copy_to_row(as_row(made), 0, part.const_data_ptr(),
                static_cast<std::size_t>(part.numel()) * part.element_size());
    return made;
  });
}

at::Tensor to_device(const TensorPieces& pieces, c10::Device device) {
  const c10::DeviceGuard guard(device);
  const at::TensorOptions options = at::TensorOptions().dtype(pieces.dtype).device(device);
  at::Tensor made = pieces.strides.empty() ? at::empty(pieces.sizes, options)
                                           : at::empty_strided(pieces.sizes, pieces.strides, options);
  const at::Tensor row = as_row(made);
  int64_t begin = 0;
  for (const transport::Buffer& buffer : pieces.buffers)
    begin += copy_to_row(row, begin, buffer.data(), buffer.size());
  return made;
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
