#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace gradwire::autograd {

// Runs `function` on `inputs` and keeps nothing of what its backward will need but the inputs: the backward
// runs it once more. Saves memory for time. It may call other workers; those calls are made twice too.
//
// In the backward pass of an autograd context the gradients of whatever else `function` uses, its parameters,
// go into the context; in libtorch's own backward they go into `.grad`. `function` must do the same both
// times: random numbers are not replayed. It must not change its inputs. Gradients of gradients
// (create_graph) do not pass through. Throws what `function` throws.
//
//   auto block = [this](const std::vector<at::Tensor>& x) { return std::vector{block_(x[0])}; };
//   at::Tensor y = checkpoint(block, {x})[0];
std::vector<at::Tensor> checkpoint(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> function,
    std::vector<at::Tensor> inputs);

}  // namespace gradwire::autograd
