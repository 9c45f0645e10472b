#pragma once

#include <ATen/core/Tensor.h>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::collectives {

// Starts the average of `tensor` over the group, in place. Divides before it sums, so that the sum of float16
// values does not overflow.
HookStep mean_of(ProcessGroup& group, at::Tensor tensor);

}  // namespace gradwire::collectives
