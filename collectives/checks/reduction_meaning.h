#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The reason why no backend supports this reduction for this dtype, as a text for error messages. nullptr if
// the reduction is supported.
const char* unsupported_reason(const Reduction& op, c10::ScalarType dtype);

// Whether the backends cpu and mpi combine the elements of `ranks` ranks in float: half and bfloat16, if each
// partial result would be rounded, or if the average is divided after a rounding.
bool combines_in_float(ReduceOp op, c10::ScalarType dtype, int ranks);

// Writes the reduction of `a` and `b` to `out`, which may be `a`, with libtorch's operators. For kAvg it
// writes the sum: the caller divides. Throws libtorch's exception for a dtype that the operator does not
// support.
void combine_tensors(ReduceOp op, at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace gradwire::collectives
