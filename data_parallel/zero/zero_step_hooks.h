#pragma once

#include <memory>

#include "gradwire/data_parallel/hooks/comm_hook.h"
#include "gradwire/data_parallel/zero/zero_redundancy_optimizer.h"

namespace gradwire::data_parallel {

// The functions make hooks that reduce the gradients with another hook, and step an optimizer with sharded
// state in the backward pass: each rank steps its share of a bucket's parameters and broadcasts the new
// values, while the next buckets are still being reduced. When backward() returns, the parameters have their
// new values on every rank. So the program must not call optimizer.step(). They follow
// torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook.
//
// The optimizer must have the group of the replica, and must outlive its last pass. Delayed and sparse
// parameters, which a hook does not see, are stepped at the end of the pass. Parameters of the optimizer that
// are not in the replica must not have gradients. With find_unused_parameters, a parameter that no rank has
// used is stepped with a gradient of zeros. With Join, give the replica alone: its join steps the optimizer.
// With mixed_precision the optimizer steps the float32 parameters.
//
//   DistributedDataParallel model(net, {.group = group});
//   const torch::optim::AdamOptions options(1e-3);
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(net->parameters(), options, group);
//   model.register_comm_hook(hook_with_zero_step(allreduce_hook(group), optimizer));
//   model.forward(batch).sum().backward();
//   // The parameters have their new values.

// Steps when the pass has computed its last gradient. It disturbs the backward pass least, so it is better if
// the communication takes longer than the computation.
std::shared_ptr<CommHook> hook_with_zero_step(std::shared_ptr<CommHook> hook, ShardedOptimizer& optimizer);

// Steps a bucket's parameters as soon as they are reduced, also while the pass still computes gradients. The
// broadcasts start after that, as with hook_with_zero_step().
std::shared_ptr<CommHook> hook_with_zero_step_interleaved(std::shared_ptr<CommHook> hook,
                                                          ShardedOptimizer& optimizer);

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::hook_with_zero_step;
using data_parallel::hook_with_zero_step_interleaved;
}  // namespace gradwire::collectives
