#include "rpc/tensor_memory.h"

#include <ATen/Utils.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <utility>

#include "transport/buffer_pool.h"

namespace gradwire::rpc {

absl::StatusOr<transport::Buffer> allocate_tensor_memory(std::size_t size) {
  // Never destroyed: tensors outlive static destruction.
  static auto* const pool = new transport::BufferPool();
  return pool->allocate(size);
}

at::Tensor tensor_over(transport::Buffer memory, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype) {
  void* const data = memory.data();
  const std::size_t size = memory.size();
  auto owner = std::make_unique<std::shared_ptr<void>>(memory.owner());
  c10::DataPtr pointer(
      data, owner.release(), [](void* context) { delete static_cast<std::shared_ptr<void>*>(context); },
      at::Device(at::kCPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(pointer), c10::GetCPUAllocator(),
                       /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  if (strides.empty()) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  }
  return tensor;
}

at::Tensor reinterpret(const at::Tensor& tensor, at::ScalarType dtype) {
  at::Tensor other = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()),
                                                              c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                              c10::scalarTypeToTypeMeta(dtype));
  other.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  other.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  return other;
}

}  // namespace gradwire::rpc
