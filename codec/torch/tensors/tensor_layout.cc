#include "gradwire/codec/torch/tensors/tensor_layout.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::rpc {

// Zero sizes are skipped in the product: the other sizes must not overflow even if the tensor is empty,
// since libtorch computes strides from them.
absl::StatusOr<TensorExtent> checked_extent(absl::Span<const int64_t> sizes, int64_t item_size) {
  if (sizes.size() > kMaxDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", sizes.size(), " dimensions; the limit is ", kMaxDimensions));
  }
  int64_t span = item_size;
  bool empty = false;
  for (int64_t size : sizes) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("it has a dimension of size ", size));
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(span, size, &span)) {
      return absl::InvalidArgumentError(
          absl::StrCat("its sizes [", absl::StrJoin(sizes, ", "), "] overflow 63 bits"));
    }
  }
  return empty ? TensorExtent{0, 0} : TensorExtent{span / item_size, span};
}

// A dense tensor has each element exactly once in memory, without gaps. Sorted by stride, each dimension
// must therefore continue where the ones before end: its stride is the product of their sizes. Dimensions
// of size 1 have any stride.
absl::Status check_dense(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides, int64_t numel) {
  if (strides.size() != sizes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", sizes.size(), " sizes and ", strides.size(), " strides"));
  }
  absl::InlinedVector<std::pair<int64_t, int64_t>, 8> order;  // Stride and size.
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i] < 0 || strides[i] > numel) {
      return absl::InvalidArgumentError(absl::StrCat("its stride ", strides[i], " is out of range"));
    }
    if (sizes[i] != 1) order.emplace_back(strides[i], sizes[i]);
  }
  std::sort(order.begin(), order.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : order) {
    if (stride != expected) {
      return absl::InvalidArgumentError(absl::StrCat("its sizes [", absl::StrJoin(sizes, ", "),
                                                     "] and strides [", absl::StrJoin(strides, ", "),
                                                     "] do not describe a dense tensor"));
    }
    expected *= size;  // At most numel: no overflow.
  }
  return absl::OkStatus();
}

// The stride of a dimension of size 1 is never used and may be any number. The reader accepts only 0 to
// numel, so bring it into that range.
std::vector<int64_t> portable_strides(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                                      int64_t numel) {
  std::vector<int64_t> portable(strides.begin(), strides.end());
  for (std::size_t i = 0; i < portable.size(); ++i) {
    if (sizes[i] == 1) portable[i] = std::clamp<int64_t>(portable[i], 0, numel);
  }
  return portable;
}

absl::Status check_bools(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  // Collects all bits: this loop has no branch, so the compiler vectorises it.
  unsigned char seen = 0;
  for (std::size_t i = 0; i < size; ++i) seen |= bytes[i];
  if (seen > 1) return absl::InvalidArgumentError("it holds bool values that are neither true nor false");
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
