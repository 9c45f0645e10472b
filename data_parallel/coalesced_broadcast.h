#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// Every rank's tensors become those of the group's first rank: packed into few messages of about `bytes`
// each, of one dtype and device. Entered by all ranks with tensors of the same shapes and dtypes. Autograd
// does not see the change: what was saved for a backward pass stays valid. Throws what the group throws.
void broadcast_coalesced(ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                         uint64_t bytes = uint64_t{25} << 20);

// Numbers for dtype and device, equal where both are: by first appearance.
std::vector<int> kinds_of(const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::collectives
