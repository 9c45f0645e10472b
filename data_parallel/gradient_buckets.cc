#include "gradwire/data_parallel/gradient_buckets.h"

#include <ATen/ops/add.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/coalesced_broadcast.h"

namespace gradwire::collectives {

GradientBuckets::GradientBuckets(std::vector<NamedTensor> parameters, const BucketCaps& caps)
    : caps_(caps), views_(parameters.size()) {
  if (parameters.empty()) {
    throw Error(absl::InvalidArgumentError(
        "DistributedDataParallel needs a module with at least one parameter that requires grad"));
  }
  for (NamedTensor& parameter : parameters) {
    if (parameter.tensor.layout() != at::kStrided) {
      throw Error(absl::InvalidArgumentError(
          absl::StrCat("DistributedDataParallel needs dense parameters: the parameter \"", parameter.name,
                       "\" is not dense")));
    }
    names_.push_back(std::move(parameter.name));
    leaves_.push_back(std::move(parameter.tensor));
  }
  kinds_ = kinds_of(leaves_);
  arrange(reverse_order(leaves_.size()));
}

// 1. Plan the buckets.
// 2. Make a flat tensor of zeros for each.
// 3. Make the view of each parameter. If `.grad` is the old view, its value moves along; otherwise the old
//    bucket would stay alive and `.grad` would not be reduced in place any more.
void GradientBuckets::arrange(const std::vector<std::size_t>& order) {
  const c10::NoGradGuard no_grad;
  std::vector<PlannedParameter> planned;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    planned.push_back({static_cast<uint64_t>(leaves_[i].nbytes()), kinds_[i]});
  }
  buckets_ = plan_buckets(planned, order, caps_);
  bucket_of_.resize(leaves_.size());
  flat_.clear();
  for (const std::vector<std::size_t>& bucket : buckets_) {
    int64_t elements = 0;
    for (std::size_t i : bucket) elements += leaves_[i].numel();
    flat_.push_back(at::zeros({elements}, leaves_[bucket[0]].options().requires_grad(false)));
    int64_t offset = 0;
    for (std::size_t i : bucket) {
      bucket_of_[i] = flat_.size() - 1;
      make_view(i, flat_.back(), offset);
      offset += leaves_[i].numel();
    }
  }
  fence();
}

at::Tensor& GradientBuckets::flat_for_reduction(std::size_t bucket) {
  streams_.before_reduction(bucket, flat_[bucket]);
  return flat_[bucket];
}

void GradientBuckets::make_view(std::size_t i, const at::Tensor& flat, int64_t offset) {
  const at::Tensor& leaf = leaves_[i];
  // The view has the parameter's strides if these leave no gaps; otherwise it is contiguous. variable_data()
  // makes it an ordinary tensor for autograd: optimizers call detach_() on gradients, which fails for views.
  const at::Tensor view = (leaf.is_non_overlapping_and_dense()
                               ? flat.as_strided(leaf.sizes(), leaf.strides(), flat.storage_offset() + offset)
                               : flat.narrow(0, offset, leaf.numel()).view(leaf.sizes()))
                              .variable_data();
  if (holds_grad(i)) {
    view.copy_(leaf.grad());
    leaf.mutable_grad() = view;
  }
  views_[i] = view;
}

std::string GradientBuckets::names_of(const std::vector<std::size_t>& parameters) const {
  return absl::StrJoin(parameters, ", ", [this](std::string* out, std::size_t i) {
    absl::StrAppend(out, "\"", names_[i], "\"");
  });
}

// The user may replace `.grad` at any time, so this is compared and not remembered. The objects differ even
// if they are the same view, so the memory and the layout are compared.
bool GradientBuckets::holds_grad(std::size_t i) const {
  const at::Tensor &a = leaves_[i].grad(), &b = views_[i];
  return a.defined() && b.defined() && a.layout() == at::kStrided && a.is_alias_of(b) &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

void GradientBuckets::check_dense(std::size_t i, const at::Tensor& gradient) const {
  if (!gradient.defined() || gradient.layout() == at::kStrided) return;
  throw Error(
      absl::InvalidArgumentError(absl::StrCat("the parameter \"", names_[i],
                                              "\" has a sparse gradient, which DistributedDataParallel does "
                                              "not support; make the gradient dense, or keep "
                                              "the parameter on a parameter server")));
}

void GradientBuckets::move_grad_into_bucket(std::size_t i) {
  const c10::NoGradGuard no_grad;
  note_stream(i);
  at::Tensor& grad = leaves_[i].mutable_grad();
  if (!grad.defined()) {
    views_[i].zero_();
  } else if (!holds_grad(i)) {
    check_dense(i, grad);
    views_[i].copy_(grad);
    grad = views_[i];
  }
}

void GradientBuckets::write_sum(std::size_t i, const at::Tensor& gradient, const at::Tensor& before) {
  const c10::NoGradGuard no_grad;
  check_dense(i, gradient);
  check_dense(i, before);
  note_stream(i);
  at::Tensor& view = views_[i];
  if (gradient.defined() && before.defined()) {
    at::add_out(view, before, gradient);
  } else if (gradient.defined() || before.defined()) {
    view.copy_(gradient.defined() ? gradient : before);
  } else {
    view.zero_();
  }
}

}  // namespace gradwire::collectives
