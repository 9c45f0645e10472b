#include "gradwire/data_parallel/hooks/mean.h"

#include <ATen/ops/div.h>

namespace gradwire::collectives {

HookStep mean_of(ProcessGroup& group, at::Tensor tensor) {
  tensor.div_(group.size());
  return HookStep::locally_after({group.all_reduce_async(tensor)}, [tensor] { return HookStep(tensor); });
}

}  // namespace gradwire::collectives
