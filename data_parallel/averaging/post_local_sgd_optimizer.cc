#include "gradwire/data_parallel/averaging/post_local_sgd_optimizer.h"

#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/hook_archive.h"

namespace gradwire::data_parallel {

PostLocalSgdOptimizer::PostLocalSgdOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                             std::unique_ptr<ModelAverager> averager)
    : optimizer_(std::move(optimizer)), averager_(std::move(averager)) {
  if (optimizer_ == nullptr || averager_ == nullptr) {
    throw Error(absl::InvalidArgumentError("PostLocalSgdOptimizer needs an optimizer and an averager"));
  }
}

at::Tensor PostLocalSgdOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  const at::Tensor loss = optimizer_->step(std::move(closure));
  std::vector<at::Tensor> parameters;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  averager_->average_parameters(parameters);
  return loss;
}

void PostLocalSgdOptimizer::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "averager.step", averager_->step());
  optimizer_->save(archive);
}

void PostLocalSgdOptimizer::load(torch::serialize::InputArchive& archive) {
  const int64_t step = read_number(archive, "averager.step");
  optimizer_->load(archive);
  averager_->set_step(step);
}

}  // namespace gradwire::data_parallel
