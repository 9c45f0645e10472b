#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace gradwire::autograd {

// Runs `function` on `inputs` and returns its results. Keeps only the inputs for the backward pass, which
// runs `function` a second time: this trades time for memory. `function` may call other workers; those calls
// are made twice too.
//
// The gradients of other tensors that `function` uses, for example its parameters, go into the context in the
// backward pass of an autograd context, and into `.grad` in libtorch's own backward. `function` must compute
// the same both times: random numbers are not replayed. It must not change its inputs. Gradients of gradients
// (create_graph) are not supported. Throws what `function` throws.
//
//   auto block = [this](const std::vector<at::Tensor>& x) { return std::vector{block_(x[0])}; };
//   at::Tensor y = checkpoint(block, {x})[0];
std::vector<at::Tensor> checkpoint(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> function,
    std::vector<at::Tensor> inputs);

}  // namespace gradwire::autograd
