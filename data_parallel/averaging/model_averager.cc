#include "gradwire/data_parallel/averaging/model_averager.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/subgroups.h"

namespace gradwire::data_parallel {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(absl::InvalidArgumentError(absl::StrCat(parts...)));
}

int64_t checked_warmup(int64_t warmup_steps) {
  if (warmup_steps < 0) refuse("warmup_steps must not be negative, got ", warmup_steps);
  return warmup_steps;
}

}  // namespace

// variable_data() has the same memory but its own version counter, so autograd does not see the change.
void average_tensors(collectives::ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> by_kind;
  for (const at::Tensor& tensor : tensors) {
    const auto same = std::find_if(by_kind.begin(), by_kind.end(), [&](const auto& list) {
      return list[0].scalar_type() == tensor.scalar_type() && list[0].device() == tensor.device();
    });
    (same == by_kind.end() ? by_kind.emplace_back() : *same).push_back(tensor.variable_data());
  }
  for (const std::vector<at::Tensor>& list : by_kind) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& tensor : list) parts.push_back(tensor.reshape({-1}));
    const at::Tensor flat = at::cat(parts).div_(group.size());
    group.all_reduce(flat);
    int64_t offset = 0;
    for (const at::Tensor& tensor : list) {
      tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

void ModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  if (collectives::ProcessGroup* const group = group_of(step_); group != nullptr) {
    std::vector<at::Tensor> kept;
    for (const at::Tensor& each : parameters) {
      if (each.grad().defined()) kept.push_back(each);
    }
    average_tensors(*group, kept);
  }
  ++step_;
}

void ModelAverager::set_step(int64_t step) {
  if (step < 0) refuse("the number of steps must not be negative, got ", step);
  step_ = step;
}

PeriodicModelAverager::PeriodicModelAverager(std::shared_ptr<collectives::ProcessGroup> group, int64_t period,
                                             int64_t warmup_steps)
    : group_(std::move(group)), period_(period), warmup_steps_(checked_warmup(warmup_steps)) {
  if (group_ == nullptr) refuse("PeriodicModelAverager needs a group");
  if (period_ < 1) refuse("the period must be positive, got ", period_);
}

collectives::ProcessGroup* PeriodicModelAverager::group_of(int64_t step) {
  return step >= warmup_steps_ && (step - warmup_steps_) % period_ == 0 ? group_.get() : nullptr;
}

HierarchicalModelAverager::HierarchicalModelAverager(std::shared_ptr<collectives::ProcessGroup> world,
                                                     const std::map<int64_t, int>& period_group_sizes,
                                                     int64_t warmup_steps)
    : warmup_steps_(checked_warmup(warmup_steps)) {
  if (world == nullptr || period_group_sizes.empty()) {
    refuse("HierarchicalModelAverager needs a group and at least one period");
  }
  int smaller = 1;
  for (const auto& [period, size] : period_group_sizes) {
    if (period < 1) refuse("the period must be positive, got ", period);
    if (size < smaller || size < 1 || world->size() % size != 0) {
      refuse("the sizes of the groups must not shrink, and must divide ", world->size(), ", got ", size,
             " for period ", period);
    }
    smaller = size;
  }
  if (smaller != world->size()) {
    refuse("the last group must have all ", world->size(), " ranks, got ", smaller);
  }
  for (const auto& [period, size] : period_group_sizes) {
    groups_[period] = size == world->size() ? world : collectives::new_subgroups(size, world).own;
  }
}

collectives::ProcessGroup* HierarchicalModelAverager::group_of(int64_t step) {
  if (step < warmup_steps_) return nullptr;
  for (auto each = groups_.rbegin(); each != groups_.rend(); ++each) {
    if (step % each->first == 0) return each->second.get();
  }
  return nullptr;
}

}  // namespace gradwire::data_parallel
