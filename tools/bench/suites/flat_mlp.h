#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::bench {

// The model of the case train_step at a trainer: the perceptron of mlp.h, with all parameters in one vector
// of floats. Computes on the calling thread. Not thread-safe.
class FlatMlp {
 public:
  FlatMlp();
  // The parameters before the first step, the same in every process.
  static at::Tensor initial_parameters();
  // Returns the gradient of the loss at these parameters, in the same order, and sets loss().
  // std::invalid_argument if the vector has another size or type.
  at::Tensor gradient(const at::Tensor& parameters);
  float loss() const { return loss_; }

 private:
  at::Tensor images_;
  float loss_ = 0;
};

// The parameter server of the case train_step. Both functions are thread-safe. The returned vector does not
// change.
at::Tensor model_parameters();
// Subtracts the gradient, times the learning rate, from the parameters. Returns its number of floats.
int64_t apply_model_gradient(const at::Tensor& gradient);

}  // namespace gradwire::bench
