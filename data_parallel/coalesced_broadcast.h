#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// Copies the tensors of one rank to the tensors of every rank. `root`: the rank in the group. Packs them into
// few messages of about `bytes` bytes each; each message has one dtype and device. All ranks must call it
// with tensors of the same shapes and dtypes. Autograd does not see the change, so tensors saved for a
// backward pass stay valid. Throws the group's errors.
void broadcast_coalesced(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root = 0,
                         uint64_t bytes = uint64_t{25} << 20);

// A number for each tensor's dtype and device: equal for tensors with equal dtype and device, and counted
// from 0 in the order of first appearance.
std::vector<int> kinds_of(const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::collectives
