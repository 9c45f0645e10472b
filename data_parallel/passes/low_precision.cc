#include "gradwire/data_parallel/passes/low_precision.h"

#include <c10/core/GradMode.h>

namespace gradwire::collectives {

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& each : parameters) {
    if (each.scalar_type() == at::kFloat) parameters_.push_back(each);
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

void LowPrecision::restore() {
  if (!lowered_) return;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& each = parameters_[i];
    const at::Tensor grad = each.grad();
    each.mutable_grad().reset();
    each.set_data(full_[i]);
    if (grad.defined()) each.mutable_grad() = grad.to(at::kFloat);
  }
  full_.clear();
  lowered_ = false;
}

}  // namespace gradwire::collectives
