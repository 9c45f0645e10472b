#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/reducer.h"

namespace gradwire::collectives {

// Options of DistributedDataParallel; they have the meaning of the arguments of
// torch.nn.parallel.DistributedDataParallel.
struct DistributedDataParallelOptions {
  // nullptr: the world.
  std::shared_ptr<ProcessGroup> group;
  // The CUDA device of the module; at most one. Tensors among forward's arguments are moved to it. Empty:
  // they are not moved.
  std::vector<int64_t> device_ids;
  // The device to which the tensor that forward returns is moved.
  std::optional<at::Device> output_device;
  // Gradients are averaged in buckets of about this number of MiB.
  double bucket_cap_mb = 25;
  // Whether forward may leave some parameters unused. Costs one more small reduction in each pass.
  bool find_unused_parameters = false;
  // Whether the buffers of rank 0 are broadcast before each forward in training.
  bool broadcast_buffers = true;
};

// Makes the part of DistributedDataParallel that does not depend on the module's type. Throws the errors of
// its constructor.
std::unique_ptr<Reducer> make_reducer(const torch::nn::Module& module,
                                      const DistributedDataParallelOptions& options);

// The device in device_ids; nullopt if it is empty.
std::optional<at::Device> input_device(const DistributedDataParallelOptions& options);

}  // namespace gradwire::collectives
