#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

// Marks for tensors that arrived outside every context. A forward that ran before the Context was opened
// returns such a tensor: it requires grad, but its history stayed at the sender, where no pass can reach it.
// Without a mark a pass that ends at such a tensor could not be distinguished from a correct one.
namespace gradwire::autograd {

// Marks those of `tensors` that require grad as received from worker `sender` outside every context. The mark
// belongs to the tensor: views and detached tensors do not have it.
void mark_unjoined(const std::string& sender, const std::vector<at::Tensor>& tensors);

// Returns the worker that sent `tensor` outside every context; nullptr for a tensor without a mark.
const std::string* unjoined_sender(const at::Tensor& tensor);

}  // namespace gradwire::autograd
