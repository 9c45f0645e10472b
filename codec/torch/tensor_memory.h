#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Memory for the bytes of a tensor, aligned to 64 bytes, from a pool of the process. ResourceExhausted when
// there is none.
absl::StatusOr<transport::Buffer> allocate_tensor_memory(std::size_t size);

// The same for a tensor of some hundred bytes, out of the calling thread's own stock where there is one.
absl::StatusOr<c10::DataPtr> small_tensor_memory(std::size_t size);

// A tensor over `memory`, which lives as long as the tensor's storage. It may be changed, and resized beyond
// the memory like any other: libtorch then moves it to memory of its own. Empty `strides`: row-major.
// REQUIRES: the layout lies within the memory (tensor_layout.h), and the memory belongs to the tensor alone.
at::Tensor tensor_over(transport::Buffer memory, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype);

// The same over `size` bytes of memory that the tensor owns in libtorch's way.
at::Tensor tensor_over(c10::DataPtr memory, std::size_t size, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype);

// What holds the memory of a tensor that tensor_over made of a Buffer; nullptr for any other.
std::shared_ptr<void> memory_owner(const at::Tensor& tensor);

// A tensor of another dtype of the same size over the memory of `tensor`, with its sizes, strides and offset.
at::Tensor reinterpret(const at::Tensor& tensor, at::ScalarType dtype);

}  // namespace gradwire::rpc
