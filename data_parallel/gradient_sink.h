#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace gradwire::collectives {

// Where the gradients of a backward pass go that libtorch's engine does not run: one of a distributed
// autograd context, whose gradients do not go to `.grad`. What runs such passes lets itself be found here, so
// that the gradients of replicated parameters can be reduced inside one without this layer knowing of it.
class GradientSink {
 public:
  using Tensors = std::vector<at::Tensor>;

  virtual ~GradientSink() = default;
  // What there is for each of these leaves so far; undefined where there is nothing. Not to be changed.
  virtual Tensors get(const Tensors& leaves) = 0;
  // One for each leaf, in place of what there is; the sink keeps the tensors themselves.
  virtual void set(const Tensors& leaves, Tensors gradients) = 0;
};

// Of the pass that runs the node whose hook calls this; nullptr when there is none. May throw Error.
using GradientSinkFinder = std::unique_ptr<GradientSink> (*)();
// Called during static initialisation, by a library that is linked with alwayslink.
void set_gradient_sink_finder(GradientSinkFinder finder);
std::unique_ptr<GradientSink> find_gradient_sink();

}  // namespace gradwire::collectives
