#include "gradwire/data_parallel/buckets/gradient_buckets.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/buckets/coalesced_broadcast.h"

namespace gradwire::data_parallel {

namespace {

// The gradient as a sparse tensor of this dtype with one sparse dimension. An undefined one has no entries.
at::Tensor as_sparse(const at::Tensor& leaf, const at::Tensor& gradient, at::ScalarType dtype) {
  if (!gradient.defined()) {
    std::vector<int64_t> values = leaf.sizes().vec();
    values[0] = 0;
    return at::sparse_coo_tensor(at::zeros({1, 0}, leaf.options().dtype(at::kLong)),
                                 at::zeros(values, leaf.options().dtype(dtype)), leaf.sizes());
  }
  return (gradient.layout() == at::kStrided ? gradient.to_sparse(1) : gradient).to(dtype);
}

// Throws Error with InvalidArgument for a sparse gradient of the parameter.
void check_dense(const std::string& name, const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.layout() == at::kStrided) return;
  throw Error(absl::InvalidArgumentError(absl::StrCat(
      "the parameter \"", name,
      "\" has a sparse gradient, but DistributedDataParallel expects a dense one; add the name to "
      "sparse_parameters")));
}

}  // namespace

GradientBuckets::GradientBuckets(std::vector<NamedTensor> parameters, const BucketCaps& caps,
                                 std::optional<at::ScalarType> dtype)
    : dtype_(dtype), views_(parameters.size()), sparse_(parameters.size()) {
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
    if (parameter.sparse_gradient && parameter.tensor.dim() == 0) {
      throw Error(absl::InvalidArgumentError(absl::StrCat(
          "a parameter with a sparse gradient must have at least one dimension: the parameter \"",
          names_.back(), "\" has none; remove it from sparse_parameters")));
    }
    leaves_.push_back(std::move(parameter.tensor));
    sparse_gradient_.push_back(parameter.sparse_gradient);
    dtypes_.push_back(leaves_.back().scalar_type());
  }
  kinds_ = kinds_of(leaves_);
  arrange(reverse_order(leaves_.size()), caps);
}

Buckets GradientBuckets::plan(const std::vector<std::size_t>& order, const BucketCaps& caps) const {
  std::vector<PlannedParameter> planned;
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(leaves_[i].numel()) * at::elementSize(dtype_of(i));
    planned.push_back({bytes, kinds_[i], is_sparse(i)});
  }
  return plan_buckets(planned, order, caps);
}

// 1. Plan the buckets.
// 2. Make a flat tensor of zeros for each.
// 3. Make the view of each parameter. If `.grad` is the old view, its value moves along; otherwise the old
//    bucket would stay alive and `.grad` would not be reduced in place any more.
void GradientBuckets::arrange(const std::vector<std::size_t>& order, const BucketCaps& caps) {
  const c10::NoGradGuard no_grad;
  buckets_ = plan(order, caps);
  bucket_of_.resize(leaves_.size());
  flat_.clear();
  for (const std::vector<std::size_t>& bucket : buckets_) {
    int64_t elements = 0;
    for (std::size_t i : bucket) elements += is_sparse(i) ? 0 : leaves_[i].numel();
    const at::TensorOptions options = leaves_[bucket[0]].options().dtype(dtype_of(bucket[0]));
    flat_.push_back(at::zeros({elements}, options.requires_grad(false)));
    int64_t offset = 0;
    for (std::size_t i : bucket) {
      bucket_of_[i] = flat_.size() - 1;
      if (is_sparse(i)) continue;
      make_view(i, flat_.back(), offset);
      offset += leaves_[i].numel();
    }
  }
  fence();
}

at::ScalarType GradientBuckets::dtype_of(std::size_t i) const {
  return dtype_.has_value() && dtypes_[i] == at::kFloat ? *dtype_ : dtypes_[i];
}

std::vector<at::Tensor> GradientBuckets::leaves_of(std::size_t bucket) const {
  std::vector<at::Tensor> leaves;
  for (std::size_t i : buckets_[bucket]) leaves.push_back(leaves_[i]);
  return leaves;
}

std::optional<std::size_t> GradientBuckets::sparse_parameter(std::size_t bucket) const {
  const std::size_t first = buckets_[bucket][0];
  return is_sparse(first) ? std::optional(first) : std::nullopt;
}

bool GradientBuckets::is_last_flat(std::size_t bucket) const {
  while (++bucket < buckets_.size()) {
    if (!sparse_parameter(bucket).has_value()) return false;
  }
  return true;
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

at::Tensor GradientBuckets::reduced(std::size_t i, bool copy) const {
  if (is_sparse(i)) return sparse_[i].to(dtypes_[i]);
  if (dtype_of(i) != dtypes_[i]) return views_[i].to(dtypes_[i]);
  return copy ? views_[i].clone() : views_[i];
}

void GradientBuckets::detach_gradients() {
  for (std::size_t i = 0; i < size(); ++i) {
    if (holds_grad(i)) leaves_[i].mutable_grad() = views_[i].clone();
  }
  fence();
}

void GradientBuckets::move_grad_into_bucket(std::size_t i) {
  const c10::NoGradGuard no_grad;
  at::Tensor& grad = leaves_[i].mutable_grad();
  if (is_sparse(i)) {
    sparse_[i] = as_sparse(leaves_[i], grad, dtype_of(i));
    return;
  }
  note_stream(i);
  if (!grad.defined()) {
    views_[i].zero_();
  } else if (!holds_grad(i)) {
    check_dense(names_[i], grad);
    views_[i].copy_(grad);
    if (views_[i].scalar_type() == grad.scalar_type()) grad = views_[i];
  }
}

void GradientBuckets::write_sum(std::size_t i, const at::Tensor& gradient, const at::Tensor& before) {
  const c10::NoGradGuard no_grad;
  if (is_sparse(i)) {
    sparse_[i] = as_sparse(leaves_[i], gradient, dtype_of(i));
    if (before.defined()) sparse_[i] = sparse_[i] + as_sparse(leaves_[i], before, dtype_of(i));
    return;
  }
  check_dense(names_[i], gradient);
  check_dense(names_[i], before);
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

}  // namespace gradwire::data_parallel
