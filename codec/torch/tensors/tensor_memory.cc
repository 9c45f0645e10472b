#include "gradwire/codec/torch/tensors/tensor_memory.h"

#include <ATen/Utils.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include "gradwire/base/block_cache.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/buffer_pool.h"

namespace gradwire::rpc {
namespace {

// The alignment that libtorch gives to its own memory.
constexpr std::size_t kAlignment = 64;
// Tensors that are sent inside the envelope fit into this size (tensor_writer.cc).
constexpr std::size_t kSmallBytes = 512;

void release_owner(void* owner) { delete static_cast<std::shared_ptr<void>*>(owner); }

// Returns a pointer whose deleter drops one reference to the owner of the memory. memory_owner() recognises
// such pointers by their deleter.
c10::DataPtr data_pointer(const transport::Buffer& memory) {
  auto owner = std::make_unique<std::shared_ptr<void>>(memory.owner());
  return c10::DataPtr(memory.data(), owner.release(), &release_owner, at::Device(at::kCPU));
}

}  // namespace

absl::StatusOr<transport::Buffer> allocate_tensor_memory(std::size_t size) {
  // Never destroyed: tensors may outlive static destruction.
  static auto* const pool = new transport::BufferPool();
  return pool->allocate(size);
}

absl::StatusOr<c10::DataPtr> small_tensor_memory(std::size_t size) {
  using Cache = BlockCache<kSmallBytes, kAlignment>;
  if (size > kSmallBytes) {
    GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer memory, allocate_tensor_memory(size));
    return data_pointer(memory);
  }
  void* const block = Cache::take();
  return c10::DataPtr(block, block, &Cache::give, at::Device(at::kCPU));
}

at::Tensor tensor_over(transport::Buffer memory, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype) {
  return tensor_over(data_pointer(memory), memory.size(), sizes, strides, dtype);
}

at::Tensor tensor_over(c10::DataPtr memory, std::size_t size, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(memory), c10::GetCPUAllocator(),
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

// Returns nullptr if the memory was not allocated by data_pointer().
std::shared_ptr<void> memory_owner(const at::Tensor& tensor) {
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &release_owner) return nullptr;
  return *static_cast<const std::shared_ptr<void>*>(memory.get_context());
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
