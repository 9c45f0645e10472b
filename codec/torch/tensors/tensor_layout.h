#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradwire::rpc {

// Checks the arithmetic of tensor descriptions. All arguments may be hostile. Does not use libtorch.

// libtorch's iterators support at most 64 dimensions.
inline constexpr std::size_t kMaxDimensions = 64;

struct TensorExtent {
  int64_t numel = 0;
  int64_t bytes = 0;
};

// Returns the number of elements and bytes that `sizes` describe. InvalidArgument if there are too many
// dimensions, if one is negative, or if the row-major strides or the number of bytes do not fit into 63 bits.
// A size of 0 does not hide the other sizes: libtorch computes strides from all of them. REQUIRES: item_size
// > 0
absl::StatusOr<TensorExtent> checked_extent(absl::Span<const int64_t> sizes, int64_t item_size);

// Returns OK if `strides` describe a dense tensor without overlap: a permutation of the row-major layout of
// `sizes`, whose elements have exactly the offsets from 0 to numel - 1. The strides of dimensions of size 1
// have no meaning but must be in 0..numel. REQUIRES: checked_extent(sizes, ...) returned `numel`, and it is
// not 0.
absl::Status check_dense(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides, int64_t numel);

// Returns the strides of a dense tensor in a form that check_dense() accepts at the receiver: the strides of
// dimensions of size 1 are limited to numel.
std::vector<int64_t> portable_strides(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                                      int64_t numel);

// Returns OK if each byte is 0 or 1. Other values of a bool are undefined behaviour in compiled code.
absl::Status check_bools(const void* data, std::size_t size);

}  // namespace gradwire::rpc
