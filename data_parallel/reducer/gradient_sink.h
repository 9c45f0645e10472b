#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace gradwire::data_parallel {

// The destination of the gradients of a backward pass that libtorch's engine does not run: the pass of a
// distributed autograd context, which does not write to `.grad`. The library that runs such passes registers
// a finder here. So the gradients of replicated parameters can be reduced in such a pass, and this layer does
// not depend on that library.
class GradientSink {
 public:
  using Tensors = std::vector<at::Tensor>;

  virtual ~GradientSink() = default;
  // The gradient that each of these leaves has so far; undefined for a leaf without one. The caller must not
  // change the tensors.
  virtual Tensors get(const Tensors& leaves) = 0;
  // Replaces the gradients of these leaves; `gradients` has one for each leaf. The sink keeps the tensors,
  // without copies.
  virtual void set(const Tensors& leaves, Tensors gradients) = 0;
};

// Finds the sink of the pass that runs on the calling thread; a hook of one of the pass's nodes calls it.
// Returns nullptr if no such pass runs. May throw Error.
using GradientSinkFinder = std::unique_ptr<GradientSink> (*)();
// Registers the finder. A library that is linked with alwayslink calls it during static initialisation.
void set_gradient_sink_finder(GradientSinkFinder finder);
// Calls the registered finder; returns nullptr if none is registered.
std::unique_ptr<GradientSink> find_gradient_sink();

}  // namespace gradwire::data_parallel
