#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/buckets/gradient_buckets.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"

namespace gradwire::data_parallel {

// Remembers which parameters this rank uses in a pass. A parameter that it does not use gets no gradient
// here, but other ranks may use it, so this rank contributes the gradient that it has accumulated before, or
// zeros. Not thread-safe.
class UnusedParameters {
 public:
  explicit UnusedParameters(std::size_t parameters) : parameters_(parameters) {}

  // A pass without reduction has accumulated the parameter's gradient.
  void accumulated_locally(std::size_t i) { parameters_[i].used_locally = true; }
  // Begins a pass, which computes gradients for the parameters in `reached`. Writes the contribution of every
  // other parameter into its bucket. `before`: the gradients of the parameters so far, if they are not in
  // `.grad`.
  void begin(GradientBuckets& buckets, const std::vector<bool>& reached,
             const std::vector<at::Tensor>* before);
  // Begins a pass to which this rank contributes zeros for all parameters.
  void begin_without_gradients(GradientBuckets& buckets);
  // Starts the reduction that finds the parameters that any rank uses in this pass; end() waits until it is
  // known. Without it, every parameter counts as used.
  void exchange(collectives::ProcessGroup& group, BucketReductions& reductions, at::Device device);
  // For each parameter, whether any rank uses it. The result of the last exchange() counts for later passes
  // too.
  std::vector<bool> used_anywhere() const;
  // Whether the pass computes no gradient for the parameter.
  bool is_unused(std::size_t i) const { return parameters_[i].unused; }

  // Ends a pass. Restores the gradient of each parameter that no rank has used. `in_sink`: the gradients are
  // not in `.grad`.
  void end(GradientBuckets& buckets, bool in_sink);

 private:
  struct Parameter {
    // Whether a pass without reduction has accumulated a gradient since the last reduction.
    bool used_locally = false;
    // Whether the parameter gets no gradient in the pass under way.
    bool unused = false;
    // Whether this rank contributes a gradient in the pass under way.
    bool contributes = true;
    // The gradient of an unused parameter before the pass.
    at::Tensor saved;
  };
  std::vector<Parameter> parameters_;
  // For each parameter, 1 if a rank uses it. Undefined: all are used.
  at::Tensor used_;
};

}  // namespace gradwire::data_parallel
