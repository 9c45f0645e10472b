#pragma once

#include <torch/nn/module.h>

#include "gradwire/collectives/process_group.h"

namespace gradwire::examples {

// Entered by all ranks of the group: whether every one's parameters are, bit for bit, those of the first.
bool replicas_agree(collectives::ProcessGroup& group, const torch::nn::Module& module);

}  // namespace gradwire::examples
