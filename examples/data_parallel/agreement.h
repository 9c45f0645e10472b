#pragma once

#include <torch/nn/module.h>

#include "gradwire/collectives/process_group.h"

namespace gradwire::examples {

// Returns whether the parameters of all ranks are equal, bit for bit, to those of the first rank. All ranks
// of the group must call it.
bool replicas_agree(collectives::ProcessGroup& group, const torch::nn::Module& module);

}  // namespace gradwire::examples
