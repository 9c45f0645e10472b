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
  // The index of the module's accelerator, for example 0 for cuda:0; at most one. Tensors in forward's
  // arguments are moved to it, also those in vectors, maps, tuples and optionals. Empty: they are not moved.
  std::vector<int64_t> device_ids;
  // The device to which the tensors in the value that forward returns are moved.
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

// The device in device_ids, an accelerator of the type that the module is on (CUDA for a module on the CPU);
// nullopt if device_ids is empty. Throws Error with InvalidArgument for more than one device, or a negative
// one.
std::optional<at::Device> input_device(const torch::nn::Module& module,
                                       const DistributedDataParallelOptions& options);

}  // namespace gradwire::collectives
