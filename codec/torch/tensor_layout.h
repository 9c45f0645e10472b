#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradwire::rpc {

// The arithmetic of tensor descriptions, where everything may be hostile. Without libtorch.

// libtorch's own iterators stop at 64.
inline constexpr std::size_t kMaxDimensions = 64;

struct TensorExtent {
  int64_t numel = 0;
  int64_t bytes = 0;
};

// How many elements and bytes `sizes` describe. InvalidArgument when there are too many dimensions, one is
// negative, or row-major strides or the number of bytes do not fit into 63 bits (sizes of 0 do not hide the
// others: libtorch computes strides from them). REQUIRES: item_size > 0
absl::StatusOr<TensorExtent> checked_extent(absl::Span<const int64_t> sizes, int64_t item_size);

// OK when `strides` describe a dense tensor without overlap: a permutation of the row-major layout of
// `sizes`, whose elements are exactly those from 0 to numel - 1. The strides of dimensions of size 1 mean
// nothing but must lie in 0..numel. REQUIRES: checked_extent(sizes, ...) gave `numel`, and it is not 0.
absl::Status check_dense(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides, int64_t numel);

// The strides of a dense tensor, fit for check_dense on the other side: those of dimensions of size 1 are cut
// to numel.
std::vector<int64_t> portable_strides(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                                      int64_t numel);

// OK when each byte is 0 or 1: code compiled for bool may do anything with others.
absl::Status check_bools(const void* data, std::size_t size);

}  // namespace gradwire::rpc
