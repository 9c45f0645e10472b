#include "gradwire/data_parallel/hooks/optimizer_in_backward.h"

#include <c10/core/GradMode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/hooks/hook_archive.h"

namespace gradwire::data_parallel {

OptimizerInBackward::OptimizerInBackward(std::shared_ptr<CommHook> hook, Factory factory,
                                         std::vector<at::Tensor> only)
    : hook_(std::move(hook)), factory_(std::move(factory)), only_(std::move(only)) {}

bool OptimizerInBackward::steps(const at::Tensor& parameter) const {
  return only_.empty() || std::any_of(only_.begin(), only_.end(),
                                      [&](const at::Tensor& each) { return each.is_same(parameter); });
}

torch::optim::Optimizer& OptimizerInBackward::optimizer_of(const at::Tensor& parameter) {
  const auto [found, made] = index_of_.try_emplace(parameter.unsafeGetTensorImpl(), optimizers_.size());
  if (made) optimizers_.emplace_back(parameter, factory_(parameter));
  return *optimizers_[found->second].second;
}

HookStep OptimizerInBackward::run(GradBucket& bucket) {
  return hook_->run(bucket).then([this, &bucket](const at::Tensor& result) {
    at::Tensor averages =
        bucket.complete(result, [this](const at::Tensor& parameter) { return steps(parameter); });
    for (const at::Tensor& parameter : bucket.parameters()) {
      if (steps(parameter)) optimizer_of(parameter).step();
    }
    return averages;
  });
}

void OptimizerInBackward::pass_ended() {
  for (auto& [parameter, optimizer] : optimizers_) parameter.mutable_grad().reset();
  hook_->pass_ended();
}

void OptimizerInBackward::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "optimizers", static_cast<int64_t>(optimizers_.size()));
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::OutputArchive each;
    optimizers_[i].second->save(each);
    archive.write(absl::StrCat("optimizer.", i), each);
  }
  hook_->save(archive);
}

void OptimizerInBackward::load(torch::serialize::InputArchive& archive) {
  const int64_t count = read_number(archive, "optimizers");
  if (count != static_cast<int64_t>(optimizers_.size())) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the archive has ", count, " optimizers, but this hook has ", optimizers_.size())));
  }
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::InputArchive each;
    archive.read(absl::StrCat("optimizer.", i), each);
    optimizers_[i].second->load(each);
  }
  hook_->load(archive);
}

}  // namespace gradwire::data_parallel
