#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gradwire::collectives {

// Lists of tensors of one size as MPI has them: one buffer, a part for each rank.

inline char* bytes_of(const at::Tensor& tensor, int64_t offset = 0) {
  return static_cast<char*>(tensor.data_ptr()) + offset;
}

// Whether they lie one behind the other.
bool is_one_buffer(const std::vector<at::Tensor>& list);
// Whether the tensor shares memory with one of them, which MPI does not allow.
bool overlaps(const at::Tensor& tensor, const std::vector<at::Tensor>& list);
// `size` parts of `bytes` bytes each, on the device of `like`.
at::Tensor make_buffer(int64_t size, int64_t bytes, const at::Tensor& like);
// Bytes [offset, offset + bytes) of each tensor, to and from the parts.
void pack(const std::vector<at::Tensor>& list, int64_t offset, int64_t bytes, const at::Tensor& buffer);
void unpack(const at::Tensor& buffer, int64_t offset, int64_t bytes, const std::vector<at::Tensor>& list);
// Of the same number of bytes; the dtypes may differ, as MPI's bytes may.
void copy_bytes(const at::Tensor& from, const at::Tensor& into);
// Waits for what the current stream of the tensor's device is still to write: MPI knows no streams.
void synchronize(const at::Tensor& tensor);

}  // namespace gradwire::collectives
