#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "gradwire/collectives/process_group.h"

namespace gradwire::data_parallel {

// The arguments of one normalisation.
struct BatchNormArguments {
  // [N, C, ...] of a floating point dtype; N may be 0 and differ between the ranks.
  at::Tensor input;
  // [C] each, or undefined.
  at::Tensor weight, bias;
  // [C] each, or undefined; they are updated.
  at::Tensor running_mean, running_var;
  // The weight of the new statistics in the running ones.
  double momentum = 0.1;
  double eps = 1e-5;
};

// Batch normalisation in training with the mean and the variance of all ranks' inputs together.
// Differentiable in input, weight and bias: the gradient of the input includes the other ranks' losses. The
// gradients of weight and bias are those of this rank's loss, which a DistributedDataParallel averages. All
// ranks must call it, and run its backward, in the same order. Throws Error: InvalidArgument for wrong
// shapes, for ranks with different numbers of channels, and if the ranks together have fewer than two values
// per channel; the group's errors.
at::Tensor synchronized_batch_norm(const std::shared_ptr<collectives::ProcessGroup>& group,
                                   const BatchNormArguments& arguments);

}  // namespace gradwire::data_parallel
