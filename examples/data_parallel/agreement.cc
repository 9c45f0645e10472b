#include "examples/data_parallel/agreement.h"

#include <ATen/ATen.h>

namespace gradwire::examples {

bool replicas_agree(collectives::ProcessGroup& group, const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  at::Tensor agree = at::ones({1}, at::kLong);
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor first = parameter.detach().clone();
    group.broadcast(first, group.ranks()[0]);
    if (!at::equal(first, parameter)) agree.zero_();
  }
  group.all_reduce(agree, collectives::ReduceOp::kMin);
  return agree.item<int64_t>() == 1;
}

}  // namespace gradwire::examples
