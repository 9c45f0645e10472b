#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// Batch normalisation whose statistics in training are those of all ranks' inputs together, for small batches
// on each rank. In evaluation it is torch::nn::BatchNorm. The inputs have the shape [N, C, ...] with any
// number of further dimensions; N may differ between the ranks, and be 0 on some of them. It follows
// torch.nn.SyncBatchNorm, and works on each device. All ranks must call it in the same order. Throws the
// errors of the group, and InvalidArgument for a wrong input.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl> {
 public:
  // `group`: nullptr is the world. Throws Error with FailedPrecondition if there is no world.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::shared_ptr<ProcessGroup> group = nullptr);

  // Normalises the input. In training it communicates.
  at::Tensor forward(const at::Tensor& input);

 protected:
  // Called by libtorch; forward checks the input.
  void _check_input_dim(const at::Tensor& input) override;

 private:
  // Not const: clone() assigns the module.
  std::shared_ptr<ProcessGroup> group_;
};

// A holder of SyncBatchNormImpl.
TORCH_MODULE(SyncBatchNorm);

// Makes each torch::nn::BatchNorm1d, 2d and 3d in a module tree use the statistics of all ranks in training.
// The modules stay the same objects, so members and containers that refer to them need no change; their
// parameters, buffers and options stay too. Returns the names of the converted modules.
//
// Call it after the module has moved to its device, and before DistributedDataParallel. `group`: nullptr is
// the world. Throws Error: InvalidArgument for a BatchNorm that has neither weights nor running statistics
// (use SyncBatchNorm there); FailedPrecondition if there is no world.
std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module,
                                                std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace gradwire::collectives
