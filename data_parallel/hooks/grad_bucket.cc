#include "gradwire/data_parallel/hooks/grad_bucket.h"

#include <ATen/ops/as_strided.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {

GradBucket::GradBucket(std::size_t index, bool is_last, at::Tensor buffer, std::vector<at::Tensor> parameters,
                       Restore restore)
    : index_(index),
      is_last_(is_last),
      first_(buffer),
      buffer_(std::move(buffer)),
      parameters_(std::move(parameters)),
      restore_(std::move(restore)) {}

void GradBucket::set_buffer(at::Tensor buffer) {
  if (buffer.dim() != 1 || buffer.numel() != buffer_.numel()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("the new buffer of a bucket must have one dimension with ", buffer_.numel(),
                     " elements, got ", buffer.dim(), " dimensions with ", buffer.numel(), " elements")));
  }
  buffer_ = std::move(buffer);
}

std::vector<at::Tensor> GradBucket::flat_gradients() const {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const at::Tensor& parameter : parameters_) {
    views.push_back(buffer_.narrow(0, offset, parameter.numel()));
    offset += parameter.numel();
  }
  return views;
}

std::vector<at::Tensor> GradBucket::gradients() const {
  std::vector<at::Tensor> views = flat_gradients();
  for (std::size_t i = 0; i < views.size(); ++i) {
    const at::Tensor& parameter = parameters_[i];
    views[i] = parameter.is_non_overlapping_and_dense()
                   ? views[i].as_strided(parameter.sizes(), parameter.strides(), views[i].storage_offset())
                   : views[i].view(parameter.sizes());
  }
  return views;
}

at::Tensor GradBucket::complete(const at::Tensor& result,
                                const std::function<bool(const at::Tensor&)>& chosen) {
  if (!result.is_same(first_)) first_.copy_(result.view_as(first_));
  buffer_ = first_;
  const std::vector<at::Tensor> averages = gradients();
  for (std::size_t i = 0; i < averages.size(); ++i) {
    at::Tensor parameter = parameters_[i];
    if (restore_ != nullptr) restore_(parameter);
    if (!chosen(parameter)) continue;
    parameter.mutable_grad() = averages[i].variable_data().to(parameter.scalar_type());
  }
  return first_;
}

}  // namespace gradwire::data_parallel
