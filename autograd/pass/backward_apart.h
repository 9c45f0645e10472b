#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/autograd/pass/context.h"

namespace gradwire::autograd {

// Same as backward() (autograd/autograd.h), except that the gradients of `leaves`, which are tensors of this
// worker, are not stored in the context but returned, one for each leaf in order. For nodes that run a pass
// of their own, for example the node of checkpoint().
std::vector<at::Tensor> backward_apart(const ContextRef& context, const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& grad_roots,
                                       const std::vector<at::Tensor>& leaves);

}  // namespace gradwire::autograd
