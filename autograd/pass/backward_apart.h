#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/autograd/context.h"

namespace gradwire::autograd {

// backward() (autograd/autograd.h), except that the gradients of `leaves`, tensors of this worker, do not go
// into the context: they are returned, one for each leaf in order. For nodes that run a pass of their own,
// like checkpoint()'s.
std::vector<at::Tensor> backward_apart(const ContextRef& context, const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& grad_roots,
                                       const std::vector<at::Tensor>& leaves);

}  // namespace gradwire::autograd
