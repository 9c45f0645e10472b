#pragma once

#include <torch/csrc/autograd/function.h>

#include "absl/status/status.h"

// What libtorch's anomaly mode (torch::autograd::DetectAnomalyGuard) asks of a backward pass.
namespace gradwire::autograd {

// Adds to the error of `node` where in the forward it was made: the stack that libtorch kept, when the mode was on there.
absl::Status with_forward_stack(torch::autograd::Node& node, absl::Status status);

// Throws where a gradient is not a number, naming its position.
void refuse_nan(const torch::autograd::variable_list& gradients);

}  // namespace gradwire::autograd
