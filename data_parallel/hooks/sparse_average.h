#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::collectives {

// Starts the average of a sparse gradient: a COO tensor of the same shape and dtype on every rank, with any
// number of entries. The step's result is the sum of all ranks' tensors divided by `divisor`, coalesced. The
// gradient does not change. Throws the errors of ProcessGroup::all_reduce for sparse tensors.
HookStep average_sparse(ProcessGroup& group, const at::Tensor& gradient, int divisor);

}  // namespace gradwire::collectives
