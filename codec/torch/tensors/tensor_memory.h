#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Allocates memory for the bytes of a tensor, aligned to 64 bytes, from a pool of the process.
// ResourceExhausted if no memory is left.
absl::StatusOr<transport::Buffer> allocate_tensor_memory(std::size_t size);

// As above, for a tensor of some hundred bytes. Blocks are reused from a cache of the calling thread.
absl::StatusOr<c10::DataPtr> small_tensor_memory(std::size_t size);

// Returns a tensor over `memory`, which the tensor's storage owns. The tensor may be modified. It may also be
// resized beyond the memory: libtorch then moves the data to newly allocated memory. Empty `strides`:
// row-major. REQUIRES: the layout fits into the memory (tensor_layout.h), and no other object uses the
// memory.
at::Tensor tensor_over(transport::Buffer memory, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype);

// As above, over `size` bytes that a c10::DataPtr owns.
at::Tensor tensor_over(c10::DataPtr memory, std::size_t size, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype);

// Returns the owner of the memory of a tensor that tensor_over() created from a Buffer; nullptr for other
// tensors.
std::shared_ptr<void> memory_owner(const at::Tensor& tensor);

// Returns a tensor over the same memory, with the same sizes, strides and offset and with another dtype of
// the same size.
at::Tensor reinterpret(const at::Tensor& tensor, at::ScalarType dtype);

}  // namespace gradwire::rpc
