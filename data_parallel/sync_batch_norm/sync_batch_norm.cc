#include "gradwire/data_parallel/sync_batch_norm/sync_batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"
#include "gradwire/data_parallel/sync_batch_norm/own_collectives.h"
#include "gradwire/data_parallel/sync_batch_norm/synchronized.h"

namespace gradwire::data_parallel {

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     std::shared_ptr<collectives::ProcessGroup> group)
    : BatchNormImplBase(options), group_(collectives::group_or_world(group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor&) {}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const bool has_running = running_mean.defined() && running_var.defined();
  if (!is_training() && has_running) {
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/false,
                          /*momentum=*/0, options.eps(), /*cudnn_enabled=*/true);
  }
  BatchNormArguments arguments{.input = input,
                               .weight = weight,
                               .bias = bias,
                               .running_mean = {},
                               .running_var = {},
                               .momentum = 0,
                               .eps = options.eps()};
  if (is_training() && options.track_running_stats()) {
    num_batches_tracked.add_(1);
    arguments.running_mean = running_mean;
    arguments.running_var = running_var;
    // Without a momentum the running statistics are the average over all batches.
    arguments.momentum =
        options.momentum().has_value() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
  }
  return synchronized_batch_norm(group_, arguments);
}

namespace {

const GroupMark* mark_of(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? data_parallel::mark_of(*tensor) : nullptr;
}

// Problem: forward of libtorch's BatchNorm is not virtual, and a module that has one as a member calls it
// directly. So a converted module cannot be another class. Instead this function takes the place of the
// operator batch_norm, which forward calls: it synchronises calls whose weight or running mean is marked, and
// passes all other calls on.
at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum,
                      double eps, bool cudnn_enabled) {
  const GroupMark* mark = mark_of(weight);
  if (mark == nullptr) mark = mark_of(running_mean);
  if (mark == nullptr || !training) {
    return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps,
                                  cudnn_enabled);
  }
  return synchronized_batch_norm(mark->group, {.input = input,
                                               .weight = weight.value_or(at::Tensor()),
                                               .bias = bias.value_or(at::Tensor()),
                                               .running_mean = running_mean.value_or(at::Tensor()),
                                               .running_var = running_var.value_or(at::Tensor()),
                                               .momentum = momentum,
                                               .eps = eps});
}

// The operator is a composite of others, which comes before a function for all kinds of autograd. So the
// function is registered for each device on which a group has collectives. takes_place_on() lists them.
// NOLINTBEGIN: macros of libtorch.
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, AutogradXPU, library) { library.impl("batch_norm", &batch_norm); }
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, library) { library.impl("batch_norm", &batch_norm); }
// NOLINTEND

bool takes_place_on(at::Device device) {
  return device.is_cpu() || device.is_cuda() || device.is_xpu() || device.is_privateuseone();
}

template <class Norm>
bool mark(torch::nn::Module& module, const std::string& name,
          const std::shared_ptr<collectives::ProcessGroup>& group) {
  auto* const norm = module.as<Norm>();
  if (norm == nullptr) return false;
  if (!norm->weight.defined() && !norm->running_mean.defined()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("convert_sync_batchnorm: the module \"", name,
                     "\" has neither weights nor running statistics; use SyncBatchNorm instead of it")));
  }
  for (const at::Tensor& tensor : {norm->weight, norm->running_mean}) {
    if (!tensor.defined()) continue;
    if (!takes_place_on(tensor.device())) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "convert_sync_batchnorm: the module \"", name, "\" is on ", tensor.device().str(),
          ", where groups have no collectives; move it to its device before, or use SyncBatchNorm")));
    }
    tensor.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<GroupMark>(group));
  }
  return true;
}

}  // namespace

std::vector<std::string> convert_sync_batchnorm(torch::nn::Module& module,
                                                std::shared_ptr<collectives::ProcessGroup> group) {
  const std::shared_ptr<collectives::ProcessGroup> in = collectives::group_or_world(group);
  std::vector<std::string> converted;
  for (const auto& item : module.named_modules()) {
    torch::nn::Module& each = *item.value();
    if (mark<torch::nn::BatchNorm1dImpl>(each, item.key(), in) ||
        mark<torch::nn::BatchNorm2dImpl>(each, item.key(), in) ||
        mark<torch::nn::BatchNorm3dImpl>(each, item.key(), in)) {
      converted.push_back(item.key());
    }
  }
  return converted;
}

}  // namespace gradwire::data_parallel
