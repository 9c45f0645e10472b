#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "gradwire/collectives/operations/operations.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The maximum number of bytes of indices and values of all ranks together.
inline constexpr int64_t kMaxSparseBytes = int64_t{1} << 34;

// `tensor`, sparse COO, becomes the coalesced sum (kSum, or kAvg: divided by the number of ranks) of all
// ranks' tensors. The number of non-zeros may differ between ranks. Every rank adds the values up in the
// order of the ranks, so all ranks get the same bits; half and bfloat16 are added up in float. `tensor` and
// `op` have been checked.
//
// Errors: InvalidArgument on all ranks, which names a rank, if the ranks' shapes, dtypes or numbers of sparse
// dimensions differ, if a rank could not read its tensor, if all indices and values together exceed
// kMaxSparseBytes, or if an index is outside of the shape. Afterwards the group is usable. The errors of
// GroupBackend.
absl::Status all_reduce_sparse(RunContext& run, at::Tensor tensor, const Reduction& op);

}  // namespace gradwire::collectives
