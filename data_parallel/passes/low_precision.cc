#include "gradwire/data_parallel/passes/low_precision.h"

#include <c10/core/GradMode.h>

#include <utility>

namespace gradwire::data_parallel {

LowPrecision::LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) : dtype_(dtype) {
  for (const at::Tensor& each : parameters) {
    if (each.scalar_type() != at::kFloat) continue;
    index_of_.emplace(each.unsafeGetTensorImpl(), parameters_.size());
    parameters_.push_back(each);
  }
  full_.resize(parameters_.size());
}

bool LowPrecision::lower() {
  const c10::NoGradGuard no_grad;
  MutexLock lock(mutex_);
  if (std::exchange(lowered_, true)) return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    full_[i] = parameters_[i].variable_data();
    parameters_[i].set_data(full_[i].to(dtype_));
  }
  return true;
}

void LowPrecision::restore() {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) restore_locked(i);
  lowered_ = false;
}

void LowPrecision::restore(const at::Tensor& parameter) {
  MutexLock lock(mutex_);
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  if (found != index_of_.end()) restore_locked(found->second);
}

void LowPrecision::restore_locked(std::size_t i) {
  if (!full_[i].defined()) return;
  const c10::NoGradGuard no_grad;
  at::Tensor& each = parameters_[i];
  const at::Tensor grad = each.grad();
  each.mutable_grad().reset();
  each.set_data(std::exchange(full_[i], at::Tensor()));
  if (grad.defined()) each.mutable_grad() = grad.to(at::kFloat);
}

}  // namespace gradwire::data_parallel
