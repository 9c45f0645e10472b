#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// Helpers for lists of tensors of one size. MPI needs them as one buffer, with one part for each rank.

// The tensor's memory, from byte `offset` on.
inline char* bytes_of(const at::Tensor& tensor, int64_t offset = 0) {
  return static_cast<char*>(tensor.data_ptr()) + offset;
}

// Whether the tensors are adjacent in memory, in the order of the list.
bool is_one_buffer(const std::vector<at::Tensor>& list);
// Whether the tensor shares memory with a tensor of the list. MPI does not allow that between input and
// output.
bool overlaps(const at::Tensor& tensor, const std::vector<at::Tensor>& list);
// A buffer of `size` parts of `bytes` bytes each, on the device of `like`.
at::Tensor make_buffer(int64_t size, int64_t bytes, const at::Tensor& like);
// Copies bytes [offset, offset + bytes) of each tensor to its part of the buffer.
void pack(const std::vector<at::Tensor>& list, int64_t offset, int64_t bytes, const at::Tensor& buffer);
// Copies the parts of the buffer to bytes [offset, offset + bytes) of the tensors.
void unpack(const at::Tensor& buffer, int64_t offset, int64_t bytes, const std::vector<at::Tensor>& list);
// Copies the bytes of a tensor to one with the same number of bytes. The dtypes may differ.
void copy_bytes(const at::Tensor& from, const at::Tensor& into);
// Waits until the current stream of the tensor's device has ended its work: MPI is not ordered by streams.
void synchronize(const at::Tensor& tensor);

}  // namespace gradwire::collectives
