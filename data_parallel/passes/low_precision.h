#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::data_parallel {

// Parameters that compute in a low precision, while the optimizer changes their full precision. lower() gives
// the parameters low-precision copies of their values; restore() gives them their full values back. The
// parameters' objects stay the same. Thread-safe. The destructor restores.
class LowPrecision {
 public:
  // `parameters` of another dtype than float32 are left alone.
  LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);
  ~LowPrecision() { restore(); }
  LowPrecision(const LowPrecision&) = delete;
  LowPrecision& operator=(const LowPrecision&) = delete;

  // Returns false, and does nothing, if the parameters are lowered already.
  bool lower();
  // A gradient that the low-precision parameter has becomes one of full precision.
  void restore();
  // Gives one parameter its full value back before restore() does so for the others. Does nothing for a
  // parameter that is not lowered.
  void restore(const at::Tensor& parameter);

 private:
  void restore_locked(std::size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const at::ScalarType dtype_;
  // The position of each parameter in `parameters_`.
  std::unordered_map<const void*, std::size_t> index_of_;

  Mutex mutex_;
  std::vector<at::Tensor> parameters_ ABSL_GUARDED_BY(mutex_);
  // The values in full precision while the parameters are lowered; undefined for a parameter that is not.
  std::vector<at::Tensor> full_ ABSL_GUARDED_BY(mutex_);
  bool lowered_ ABSL_GUARDED_BY(mutex_) = false;
};

// Restores the parameters at the end of a scope, unless keep() was called.
class [[nodiscard]] LowPrecisionScope {
 public:
  // nullptr: does nothing.
  explicit LowPrecisionScope(std::shared_ptr<LowPrecision> precision) : precision_(std::move(precision)) {}
  LowPrecisionScope(LowPrecisionScope&&) = default;
  LowPrecisionScope& operator=(LowPrecisionScope&&) = delete;
  ~LowPrecisionScope() {
    if (precision_ != nullptr) precision_->restore();
  }
  void keep() { precision_.reset(); }

 private:
  std::shared_ptr<LowPrecision> precision_;
};

// Restores the parameters if an exception ends its scope.
class [[nodiscard]] RestoreAfterError {
 public:
  // nullptr: does nothing.
  explicit RestoreAfterError(std::shared_ptr<LowPrecision> precision) : precision_(std::move(precision)) {}
  RestoreAfterError(const RestoreAfterError&) = delete;
  RestoreAfterError& operator=(const RestoreAfterError&) = delete;
  ~RestoreAfterError() {
    if (precision_ != nullptr && std::uncaught_exceptions() > exceptions_) precision_->restore();
  }

 private:
  const std::shared_ptr<LowPrecision> precision_;
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace gradwire::data_parallel
