#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// Why the reduction has no meaning for numbers of this dtype, whatever the backend: a text for messages.
// nullptr where it has one.
const char* unsupported_reason(const Reduction& op, c10::ScalarType dtype);

// `out`, which may be `a`, becomes `a` and `b` reduced as libtorch does it; an average is left a sum. Throws
// what libtorch throws for a dtype that it cannot reduce so.
void combine_tensors(ReduceOp op, at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace gradwire::collectives
