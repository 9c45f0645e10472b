#include "gradwire/data_parallel/passes/low_precision.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace gradwire::collectives {

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& each : parameters) {
    if (each.scalar_type() != at::kFloat) continue;
    index_of_[each.unsafeGetTensorImpl()] = parameters_.size();
    parameters_.push_back(each);
  }
}

void LowPrecision::lower() {
  if (lowered_) return;
  const c10::NoGradGuard no_grad;
  full_.clear();
  for (at::Tensor& each : parameters_) {
    full_.push_back(each.variable_data());
    each.set_data(each.variable_data().to(dtype_));
  }
  lowered_ = true;
}

void LowPrecision::restore(std::size_t i) {
  if (!full_[i].defined()) return;
  const c10::NoGradGuard no_grad;
  at::Tensor& parameter = parameters_[i];
  const at::Tensor grad = parameter.grad();
  parameter.mutable_grad().reset();
  parameter.set_data(std::exchange(full_[i], at::Tensor()));
  if (grad.defined()) parameter.mutable_grad() = grad.to(at::kFloat);
}

void LowPrecision::restore(const at::Tensor& parameter) {
  if (!lowered_) return;
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  if (found != index_of_.end()) restore(found->second);
}

void LowPrecision::restore() {
  if (!lowered_) return;
  for (std::size_t i = 0; i < parameters_.size(); ++i) restore(i);
  full_.clear();
  lowered_ = false;
}

}  // namespace gradwire::collectives
