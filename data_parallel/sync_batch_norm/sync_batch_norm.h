#pragma once

#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/sync_batch_norm/own_collectives.h"

namespace gradwire::data_parallel {

// Batch normalisation whose statistics in training are those of all ranks' inputs together, for small batches
// on each rank. In evaluation it is torch::nn::BatchNorm. The inputs have the shape [N, C, ...] with any
// number of further dimensions; N may differ between the ranks, and be 0 on some of them. It follows
// torch.nn.SyncBatchNorm, and works on each device. All ranks must call it in the same order. Throws the
// errors of the group, and InvalidArgument for a wrong input.
//
// Its collectives must not come between those of others in another order on each rank. If the replica has
// find_unused_parameters, and the ranks use different parameters, give it a group of its own
// (group->new_group()). It cannot be used inside a Join, whose ranks without data do not run forward.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<0, SyncBatchNormImpl>, public OwnCollectives {
 public:
  // `group`: nullptr is the world. Throws Error with FailedPrecondition if there is no world.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::shared_ptr<collectives::ProcessGroup> group = nullptr);

  // Normalises the input. In training it communicates.
  at::Tensor forward(const at::Tensor& input);

 protected:
  // Called by libtorch; forward checks the input.
  void _check_input_dim(const at::Tensor& input) override;

 private:
  // Not const: clone() assigns the module.
  std::shared_ptr<collectives::ProcessGroup> group_;
};

// A holder of SyncBatchNormImpl.
TORCH_MODULE(SyncBatchNorm);

// Makes each torch::nn::BatchNorm1d, 2d and 3d in a module tree use the statistics of all ranks in training.
// The modules stay the same objects, so members and containers that refer to them need no change; their
// parameters, buffers and options stay too. Returns the names of the converted modules.
//
// Call it after the module has moved to its device, and before DistributedDataParallel. The conversion
// belongs to the tensors: a clone() of the module, or a weight that the program replaces, does not have it.
// `group`: nullptr is the world; for the choice of the group see SyncBatchNormImpl. Throws Error:
// InvalidArgument for a BatchNorm that has neither weights nor running statistics (use SyncBatchNorm there),
// and for a BatchNorm on a device that has no collectives; FailedPrecondition if there is no world.
std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module,
                                                std::shared_ptr<collectives::ProcessGroup> group = nullptr);

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::convert_sync_batchnorm;
using data_parallel::SyncBatchNorm;
using data_parallel::SyncBatchNormImpl;
}  // namespace gradwire::collectives
