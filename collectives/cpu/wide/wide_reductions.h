#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/cpu/bytes/byte_collectives.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives::cpu {

// The reductions of half and bfloat16 whose result would lose bits if each partial result were rounded: the
// elements of all members are combined in float, in the order of the members, and rounded once. kAvg divides
// before it rounds, so a sum that half cannot hold does no harm. Every member gets the same bits.
//
//   - Short data is converted to float and reduced as float. Twice the bytes cost less than a second step.
//   - Longer data is exchanged as it is: member i gets the part i of all members, combines it, and an
//   all-gather
//     distributes the results. The members send as many bytes as in a ring.
//
// Tensors are contiguous. Used by one thread. Does not own `group`.
class WideReductions {
 public:
  WideReductions(ByteCollectives& group, int rank, int size) : group_(group), rank_(rank), size_(size) {}

  // Whether this reduction should be done by this class.
  bool takes(ReduceOp op, at::ScalarType dtype) const { return combines_in_float(op, dtype, size_); }

  // As the operations of GroupBackend. REQUIRES: takes(op, dtype of the tensor)
  absl::Status reduce(const at::Tensor& tensor, int root, ReduceOp op, absl::Time deadline);
  absl::Status all_reduce(const at::Tensor& tensor, ReduceOp op, absl::Time deadline);
  // `inputs`: the parts of all members, in their order, as bytes.
  absl::Status reduce_scatter(const at::Tensor& output, absl::Span<const Span> inputs, ReduceOp op,
                              absl::Time deadline);

 private:
  absl::Status all_reduce_by_parts(const at::Tensor& tensor, ReduceOp op, absl::Time deadline);
  // Divides `sum` for kAvg, and rounds it into `output`.
  void finish(at::Tensor sum, ReduceOp op, const at::Tensor& output) const;

  ByteCollectives& group_;
  const int rank_;
  const int size_;
};

}  // namespace gradwire::collectives::cpu
