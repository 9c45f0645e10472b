#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/reducer/reducer.h"

namespace gradwire::data_parallel {

// How DistributedDataParallel computes in a low precision. It follows _MixedPrecision of
// torch.nn.parallel.distributed.
struct MixedPrecision {
  // Float32 parameters have this dtype from forward to the end of backward(); the optimizer sees float32. One
  // backward pass may follow a forward: a second one, with retain_graph, finds the parameters in float32. The
  // parameters are float32 again after a pass that has failed, too. But if it has failed before it reached
  // forward's outputs, or no pass follows, they keep this dtype until the replica ends or another pass does.
  at::ScalarType param_dtype = at::kBFloat16;
  // The dtype in which the gradients of these parameters are averaged; default: param_dtype.
  std::optional<at::ScalarType> reduce_dtype;
  // Float32 buffers get this dtype once, in the constructor; default: they keep theirs.
  std::optional<at::ScalarType> buffer_dtype;
  // Whether the float32 tensors in forward's arguments are cast to param_dtype.
  bool cast_forward_inputs = true;
};

// Options of DistributedDataParallel; they have the meaning of the arguments of
// torch.nn.parallel.DistributedDataParallel.
struct DistributedDataParallelOptions {
  // nullptr: the world.
  std::shared_ptr<collectives::ProcessGroup> group;
  // The index of the module's accelerator, for example 0 for cuda:0; at most one. Tensors in forward's
  // arguments are moved to it, also those in vectors, maps, tuples and optionals. Empty: they are not moved.
  std::vector<int64_t> device_ids;
  // The device to which the tensors in the value that forward returns are moved.
  std::optional<at::Device> output_device;
  // Gradients are averaged in buckets of about this number of MiB. Default: the replica chooses. Its first
  // passes have 25 MiB. On the CPU, and without a communication hook, it then tries 100, 8 and 2, each in 5
  // passes, and keeps 25 unless another size makes the slowest rank's backward pass at least 5 % faster. Set
  // it if two runs must have the same bits: with more than two ranks the sizes may change the order of the
  // sums.
  std::optional<double> bucket_cap_mb;
  // Whether forward may leave some parameters unused. Costs one more small reduction in each pass.
  bool find_unused_parameters = false;
  // Whether the buffers of rank 0 are broadcast before each forward in training.
  bool broadcast_buffers = true;
  // The size of the first bucket, which starts the communication; default: 1 MiB, at most bucket_cap_mb.
  std::optional<double> first_bucket_cap_mb;
  // Whether all passes use the same parameters in the same way. The first pass finds the unused parameters,
  // so later ones do not search for them, and a parameter may be used by several passes inside one pass
  // (checkpoints of activations). find_unused_parameters has no effect then. As with mixed_precision, forward
  // must return tensors, or vectors, maps, tuples and optionals of them: they show where a pass ends.
  bool static_graph = false;
  // The names of parameters whose gradients are averaged together after all buckets. A pass may leave out any
  // of them; the gradient of such a parameter counts as zeros. At least one parameter must not be delayed.
  std::vector<std::string> delayed_parameters;
  // The names of parameters and buffers that the replica leaves alone: neither their values nor their
  // gradients are exchanged.
  std::vector<std::string> ignored;
  // The names of parameters with sparse gradients. The weights of torch::nn::Embedding and EmbeddingBag with
  // the option sparse are found without this list.
  std::vector<std::string> sparse_parameters;
  // Computes in a low precision.
  std::optional<MixedPrecision> mixed_precision;
};

// The dtype to which forward's arguments are cast; nullopt: they are not cast.
std::optional<at::ScalarType> input_dtype(const DistributedDataParallelOptions& options);

// Makes the part of DistributedDataParallel that does not depend on the module's type. Throws the errors of
// its constructor.
std::unique_ptr<Reducer> make_reducer(const torch::nn::Module& module,
                                      const DistributedDataParallelOptions& options);

// The device of the first parameter that requires grad; the CPU if no parameter does.
at::Device parameter_device(const torch::nn::Module& module);

// The device in device_ids, an accelerator of the type that the module is on (CUDA for a module on the CPU);
// nullopt if device_ids is empty. Throws Error with InvalidArgument for more than one device, or a negative
// one.
std::optional<at::Device> input_device(const torch::nn::Module& module,
                                       const DistributedDataParallelOptions& options);

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::DistributedDataParallelOptions;
using data_parallel::MixedPrecision;
}  // namespace gradwire::collectives
