#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "gradwire/data_parallel/hooks/comm_hook.h"

namespace gradwire::data_parallel {

// Steps the optimizer of each parameter as soon as its gradient is reduced, while the backward pass still
// runs, and then frees the gradient: `.grad` is undefined after backward(). It wraps the hook that reduces
// the gradients. It follows _apply_optimizer_in_backward of torch.distributed.optim.
//
//   model.register_comm_hook(std::make_shared<OptimizerInBackward>(
//       allreduce_hook(group), [](const at::Tensor& parameter) {
//         return std::make_unique<torch::optim::SGD>(std::vector{parameter}, torch::optim::SGDOptions(0.1));
//       }));
//
// The optimizers must not be stepped elsewhere. Passes under no_sync() accumulate gradients, and the next
// pass steps with their sum. With mixed_precision the optimizers see float32 parameters and gradients. A hook
// does not see sparse and delayed parameters, so these are not stepped. With find_unused_parameters, a
// parameter that no rank has used is stepped with a gradient of zeros.
class OptimizerInBackward : public CommHook {
 public:
  // Makes the optimizer of one parameter.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(const at::Tensor& parameter)>;

  // `only`: the parameters that are stepped in the pass; empty: all. The others keep their gradients.
  OptimizerInBackward(std::shared_ptr<CommHook> hook, Factory factory, std::vector<at::Tensor> only = {});

  HookStep run(GradBucket& bucket) override;
  void pass_ended() override;
  // The state includes the optimizers, in the order of the first pass, and the state of the wrapped hook.
  // load() expects that as many optimizers exist: it works after the first pass of the new replica, or with
  // optimizer_of() called for each parameter in the same order.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  // The parameter's optimizer, which is made at the first call. Between passes it may be changed, for example
  // its learning rate.
  torch::optim::Optimizer& optimizer_of(const at::Tensor& parameter);

 private:
  bool steps(const at::Tensor& parameter) const;

  const std::shared_ptr<CommHook> hook_;
  const Factory factory_;
  const std::vector<at::Tensor> only_;
  std::vector<std::pair<at::Tensor, std::unique_ptr<torch::optim::Optimizer>>> optimizers_;
  std::map<const void*, std::size_t> index_of_;
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::OptimizerInBackward;
}  // namespace gradwire::collectives
