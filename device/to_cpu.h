#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gradwire::device {

// Returns copies on the CPU of tensors without dimensions. Undefined tensors stay undefined. There is one
// transfer, for which the host waits, for each device and dtype, and not one for each tensor.
std::vector<at::Tensor> scalars_to_cpu(std::vector<at::Tensor> scalars);

}  // namespace gradwire::device
