#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace gradwire::autograd {

// What libtorch's schedulers (torch/optim/schedulers) drive in place of an optimizer whose parameters are
// elsewhere: as many groups as that has, without parameters, whose options are a learning rate. step() throws
// Error, FailedPrecondition. Not thread-safe.
class LearningRates : public torch::optim::Optimizer {
 public:
  explicit LearningRates(const std::vector<double>& rates);

  // One for each group.
  std::vector<double> get() const;
  // REQUIRES: as many as there are groups.
  void set(const std::vector<double>& rates);

  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace gradwire::autograd
