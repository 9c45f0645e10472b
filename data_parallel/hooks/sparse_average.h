#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::collectives {

// Starts the average of a sparse gradient: a COO tensor of the same shape and dtype on every rank, with any
// number of entries. The step's result is the sum of all ranks' tensors divided by `divisor`, coalesced. The
// number of bytes grows with the number of ranks times the largest number of entries of a rank. Throws the
// group's errors, and InvalidArgument if a rank reports more entries than the shape has.
HookStep average_sparse(ProcessGroup& group, const at::Tensor& gradient, int divisor);

}  // namespace gradwire::collectives
