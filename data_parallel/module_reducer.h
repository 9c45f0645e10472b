#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/reducer.h"

namespace gradwire::collectives {

// As the arguments of torch.nn.parallel.DistributedDataParallel.
struct DistributedDataParallelOptions {
  // nullptr: the world.
  std::shared_ptr<ProcessGroup> group;
  // The CUDA device of the module, at most one: tensors among forward's arguments are moved to it. Empty:
  // they stay where they are.
  std::vector<int64_t> device_ids;
  // Where the tensor that forward returns is moved to.
  std::optional<at::Device> output_device;
  // Gradients are averaged in pieces of about so many MiB.
  double bucket_cap_mb = 25;
  // forward does not use all parameters each time. Costs one more small reduction.
  bool find_unused_parameters = false;
  // Buffers become rank 0's before each forward in training.
  bool broadcast_buffers = true;
};

// The part of DistributedDataParallel that does not depend on the module's type. Throws as its constructor.
std::unique_ptr<Reducer> make_reducer(const torch::nn::Module& module,
                                      const DistributedDataParallelOptions& options);

// Of device_ids.
std::optional<at::Device> input_device(const DistributedDataParallelOptions& options);

}  // namespace gradwire::collectives
