#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "gradwire/tests/device/allocator.h"
#include "gradwire/tests/device/copy.h"
#include "gradwire/tests/device/fallback.h"
#include "gradwire/tests/device/raw_tensor.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

const c10::DispatchKeySet kKey(c10::DispatchKey::PrivateUse1);

int device_or_current(std::optional<c10::Device> device) {
  return device ? index_of(*device) : current_device();
}

void refuse_pinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "cannot pin memory of a device: only dense CPU tensors can be pinned");
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  refuse_pinned(pinned);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "got layout ", *layout, ", expected strided");
  const c10::DeviceGuard guard(torch_device(device_or_current(device)));
  return at::detail::empty_generic(size, device_allocator(), kKey, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  refuse_pinned(pinned);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "got layout ", *layout, ", expected strided");
  const c10::DeviceGuard guard(torch_device(device_or_current(device)));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKey,
                                           c10::dtype_or_default(type));
}

// Makes the storage large enough for the tensor's new shape.
void fit_storage(const at::Tensor& self) {
  const size_t needed = self.numel() == 0 ? 0
                                          : at::detail::computeStorageNbytes(
                                                self.sizes(), self.strides(), self.dtype().itemsize(),
                                                static_cast<size_t>(self.storage_offset()));
  if (needed <= self.storage().nbytes()) return;
  const c10::DeviceGuard guard(self.device());
  resize_storage(self.storage(), needed);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat> format) {
  if (self.sizes() != size) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    fit_storage(self);
  }
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  at::native::checkSetStorage<int64_t>(self, storage, offset, size, stride);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  }
  fit_storage(self);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, self.device()),
                       device_allocator(), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  copy_tensor(self.sizes() == to.sizes() ? self : self.expand(to.sizes()), to, non_blocking);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  to.resize_(self.sizes());
  copy_tensor(self, to, /*non_blocking=*/false);
  return to;
}

at::Scalar item(const at::Tensor& self) {
  Stream& stream = current_stream(index_of(self.device()));
  check(stream.synchronize("item"));
  RawTensors tensors(c10::DispatchKey::CPU);
  return tensors.make(RawTensor(self)).item();
}

void record_tensor(at::Tensor& self, at::Stream stream) {
  record_stream(self.storage().data_ptr(), stream_of(stream));
}

// Whether `self.set_data(from)` may move a tensor between the CPU and a device, as Module::to() does.
bool same_kind_of_tensor(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_privateuseone());
  };
  return dense(self) && dense(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize);
  m.impl("set_", &set_empty);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("record_stream", &record_tensor);
  m.impl("_has_compatible_shallow_copy_type", &same_kind_of_tensor);
}

// A copy reads the conjugate and negative bits itself. Without this libtorch would first clone the tensor,
// which is a copy again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace
}  // namespace gradwire::lag
