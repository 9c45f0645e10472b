#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>

#include "gradwire/data_parallel/averaging/model_averager.h"

namespace gradwire::data_parallel {

// An optimizer that averages the parameters of the replicas after some of its steps. With PostLocalSgdHook
// (hooks/post_local_sgd_hook.h) it runs post-local SGD; its averager's warmup_steps must equal the hook's
// start_local_sgd_iter. It follows PostLocalSGDOptimizer of torch.distributed.optim. All ranks must step in
// the same order. Used by one thread.
//
//   PostLocalSgdOptimizer optimizer(std::make_unique<torch::optim::SGD>(net->parameters(), 0.1),
//                                   std::make_unique<PeriodicModelAverager>(group, 4, 100));
class PostLocalSgdOptimizer {
 public:
  // Throws Error with InvalidArgument if one of them is nullptr.
  PostLocalSgdOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                        std::unique_ptr<ModelAverager> averager);

  // Steps the optimizer, then averages. Throws the group's errors.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  // As the optimizer's method.
  void zero_grad(bool set_to_none = true) { optimizer_->zero_grad(set_to_none); }
  // The wrapped optimizer: its groups of parameters, options and state.
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  // The wrapped averager.
  ModelAverager& averager() { return *averager_; }

  // Writes and reads the optimizer's state and the averager's number of steps. Without that number the
  // averager would start with its first steps again. load() throws Error with InvalidArgument if the archive
  // does not have it.
  void save(torch::serialize::OutputArchive& archive) const;
  // As save().
  void load(torch::serialize::InputArchive& archive);

 private:
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  const std::unique_ptr<ModelAverager> averager_;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::PostLocalSgdOptimizer;
}  // namespace gradwire::collectives
