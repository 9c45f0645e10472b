#include "gradwire/data_parallel/hooks/sparse_average.h"

#include <ATen/ops/clone.h>

namespace gradwire::collectives {

HookStep average_sparse(ProcessGroup& group, const at::Tensor& gradient, int divisor) {
  const at::Tensor sum = gradient.clone();
  // The group's own average divides before it rounds the values of half and bfloat16.
  if (divisor == group.size()) {
    return HookStep::locally_after({group.all_reduce_async(sum, ReduceOp::kAvg)},
                                   [sum] { return HookStep(sum); });
  }
  return HookStep::locally_after({group.all_reduce_async(sum)}, [sum, divisor] {
    sum._values().div_(divisor);
    return HookStep(sum);
  });
}

}  // namespace gradwire::collectives
