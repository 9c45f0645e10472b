#include "gradwire/data_parallel/passes/delayed_reduction.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {

DelayedReduction::DelayedReduction(std::vector<NamedTensor> parameters) {
  int64_t elements = 0;
  for (NamedTensor& each : parameters) {
    const at::Tensor& first = parameters[0].tensor;
    if (each.tensor.scalar_type() != first.scalar_type() || each.tensor.device() != first.device() ||
        each.sparse_gradient) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("delayed parameters must have one dtype, one device and dense gradients: \"",
                       each.name, "\" differs from \"", parameters[0].name, "\"")));
    }
    elements += each.tensor.numel();
  }
  flat_ = at::zeros({elements}, parameters[0].tensor.options().requires_grad(false));
  int64_t offset = 0;
  for (NamedTensor& each : parameters) {
    leaves_.push_back(std::move(each.tensor));
    views_.push_back(
        flat_.narrow(0, offset, leaves_.back().numel()).view(leaves_.back().sizes()).variable_data());
    offset += leaves_.back().numel();
  }
}

void DelayedReduction::start(BucketReductions& reductions, collectives::ProcessGroup& group, int divisor,
                             bool zeros) {
  divisor_ = divisor == group.size() ? 1 : divisor;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const at::Tensor& grad = leaves_[i].grad();
    if (zeros || !grad.defined()) {
      views_[i].zero_();
    } else if (!grad.is_alias_of(views_[i])) {
      views_[i].copy_(grad);
    }
  }
  reductions.add(group.all_reduce_async(
      flat_, divisor == group.size() ? collectives::ReduceOp::kAvg : collectives::ReduceOp::kSum));
}

void DelayedReduction::end() {
  if (divisor_ != 1) flat_.div_(divisor_);
  for (std::size_t i = 0; i < leaves_.size(); ++i) leaves_[i].mutable_grad() = views_[i];
}

}  // namespace gradwire::data_parallel
