#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

// Tensors that arrived outside every context. A forward that ran before the Context was opened returns such a
// tensor: it requires grad, its history stayed at the sender, and no pass can reach that. Without a mark a
// pass that ends at it would look like any other.
namespace gradwire::autograd {

// An answer of worker `sender` brought these tensors outside a context: marks those that require grad. The
// mark belongs to the tensor and goes with it; views and detached tensors do not have it.
void mark_unjoined(const std::string& sender, const std::vector<at::Tensor>& tensors);

// The worker that sent `tensor` outside a context; nullptr for tensors without a mark.
const std::string* unjoined_sender(const at::Tensor& tensor);

}  // namespace gradwire::autograd
