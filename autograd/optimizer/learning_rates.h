#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace gradwire::autograd {

// The optimizer object that libtorch's schedulers (torch/optim/schedulers) work on, in place of an optimizer
// whose parameters are on other workers. It has the same number of groups, without parameters, and their
// options are only a learning rate. step() throws Error, FailedPrecondition. Not thread-safe.
class LearningRates : public torch::optim::Optimizer {
 public:
  explicit LearningRates(const std::vector<double>& rates);

  // Returns the learning rate of each group.
  std::vector<double> get() const;
  // REQUIRES: one rate for each group.
  void set(const std::vector<double>& rates);

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace gradwire::autograd
