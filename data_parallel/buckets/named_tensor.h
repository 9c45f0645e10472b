#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace gradwire::data_parallel {

// A parameter or buffer and its name in the module.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  // Whether the parameter's gradients are sparse.
  bool sparse_gradient = false;
};

}  // namespace gradwire::data_parallel
