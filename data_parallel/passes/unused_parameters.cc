#include "gradwire/data_parallel/passes/unused_parameters.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

namespace gradwire::data_parallel {

// Problem: the bucket of a parameter without a gradient would never be complete, and the other ranks would
// wait. So its contribution is written now. If its `.grad` is the view into the bucket, the average will
// overwrite it, so a value that no rank may change is saved.
void UnusedParameters::begin(GradientBuckets& buckets, const std::vector<bool>& reached,
                             const std::vector<at::Tensor>* before) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool has_sum = before != nullptr ? (*before)[i].defined() : parameter.used_locally;
    parameter.contributes = reached[i] || has_sum;
    parameter.unused = !reached[i];
    if (reached[i]) continue;
    if (before != nullptr) {
      buckets.write_sum(i, at::Tensor(), (*before)[i]);
    } else if (!buckets.holds_grad(i)) {
      buckets.write_sum(i, buckets.leaves()[i].grad(), at::Tensor());
    } else if (!has_sum) {
      buckets.note_stream(i);
      parameter.saved = buckets.leaves()[i].grad().clone();
    }
  }
}

void UnusedParameters::begin_without_gradients(GradientBuckets& buckets) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i] = {.used_locally = false, .unused = true, .contributes = false, .saved = {}};
    if (buckets.holds_grad(i)) parameters_[i].saved = buckets.leaves()[i].grad().clone();
    buckets.write_sum(i, at::Tensor(), at::Tensor());
  }
}

void UnusedParameters::exchange(collectives::ProcessGroup& group, BucketReductions& reductions,
                                at::Device device) {
  at::Tensor used = at::empty({static_cast<int64_t>(parameters_.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    used.mutable_data_ptr<int32_t>()[i] = parameters_[i].contributes ? 1 : 0;
  }
  used_ = used.to(device);
  reductions.add(group.all_reduce_async(used_, collectives::ReduceOp::kMax));
}

std::vector<bool> UnusedParameters::used_anywhere() const {
  std::vector<bool> anywhere(parameters_.size(), true);
  if (!used_.defined()) return anywhere;
  const at::Tensor host = used_.cpu();
  for (std::size_t i = 0; i < anywhere.size(); ++i) anywhere[i] = host.const_data_ptr<int32_t>()[i] != 0;
  return anywhere;
}

// After a pass in a sink, gradients that were accumulated in `.grad` have not been reduced yet.
void UnusedParameters::end(GradientBuckets& buckets, bool in_sink) {
  const std::vector<bool> anywhere = used_anywhere();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!anywhere[i] && parameter.saved.defined()) buckets.view(i).copy_(parameter.saved);
    parameter = {.used_locally = in_sink && parameter.used_locally};
  }
}

}  // namespace gradwire::data_parallel
