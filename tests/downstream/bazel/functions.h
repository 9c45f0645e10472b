#pragma once

#include <ATen/ATen.h>

namespace downstream {

// Runs on a worker. Returns a tensor with the shape and dtype of `x`.
at::Tensor scale(const at::Tensor& x, double by);

}  // namespace downstream
