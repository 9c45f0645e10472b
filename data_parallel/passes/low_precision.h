#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace gradwire::collectives {

// Parameters that compute in a low precision, while the optimizer changes their full precision. lower() gives
// the parameters low-precision copies of their values; restore() gives them their full values back. The
// parameters' objects stay the same. Not thread-safe.
class LowPrecision {
 public:
  // `parameters` of another dtype than float32 are left alone.
  LowPrecision(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

  bool lowered() const { return lowered_; }
  void lower();
  // A gradient that the low-precision parameter has becomes one of full precision.
  void restore();
  // Gives one parameter its full value back before restore() does so for the others. Does nothing for a
  // parameter that is not lowered.
  void restore(const at::Tensor& parameter);

 private:
  void restore(std::size_t i);

  std::vector<at::Tensor> parameters_;
  absl::flat_hash_map<const c10::TensorImpl*, std::size_t> index_of_;
  // The values in full precision while the parameters are lowered; undefined for restored parameters.
  std::vector<at::Tensor> full_;
  const at::ScalarType dtype_;
  bool lowered_ = false;
};

}  // namespace gradwire::collectives
