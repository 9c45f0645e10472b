#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// The order of the group's first rank. `mine`: this rank's order of the same parameters, a permutation of 0,
// ..., n - 1. `device`: where the message is. All ranks must call it. Throws the group's errors, and Internal
// if the order is not a permutation.
std::vector<std::size_t> agree_on_order(ProcessGroup& group, const std::vector<std::size_t>& mine,
                                        at::Device device);

}  // namespace gradwire::collectives
