#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "gradwire/data_parallel/buckets/named_tensor.h"
#include "gradwire/data_parallel/hooks/bucket_reductions.h"

namespace gradwire::data_parallel {

// The gradients of parameters that are averaged together when the pass has started all buckets. A pass may
// leave out any of them, so they belong to no bucket: a parameter without a gradient counts as zeros, and
// gets the average. Not thread-safe.
class DelayedReduction {
 public:
  // Throws Error with InvalidArgument if the parameters have different dtypes or devices, or sparse
  // gradients.
  explicit DelayedReduction(std::vector<NamedTensor> parameters);

  // Copies the gradients together and adds their average to the pass. `zeros`: this rank contributes zeros.
  void start(BucketReductions& reductions, collectives::ProcessGroup& group, int divisor, bool zeros);
  // Sets `.grad` after the reductions have ended.
  void end();

 private:
  std::vector<at::Tensor> leaves_;
  at::Tensor flat_;
  std::vector<at::Tensor> views_;
  int divisor_ = 1;
};

}  // namespace gradwire::data_parallel
