#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/tests/autograd/program.h"

namespace programs {

// The result of a run of a program.
struct Outcome {
  // Empty on success.
  std::string error;
  // The gradient of each leaf; undefined for a leaf without one.
  std::vector<at::Tensor> gradients;
  // How often each hook was called with a defined gradient, and with the undefined one. The hooks of the
  // program come first, then those of the leaves.
  std::vector<std::pair<int, int>> hook_calls;
};

// Properties of a program that the run in one process finds.
struct Traits {
  // Whether in every pass, every message with tensors that require grad gets a gradient for at least one of
  // them. Only then a backward that assumes that every message is used can end.
  bool messages_used = true;
  // Whether every tensor of these messages gets a gradient.
  bool tensors_used = true;
};

// Runs the program in this process with the local engine of libtorch. A clone() replaces each tensor of a
// message.
Outcome run_in_one_process(const Program& program, Traits* traits = nullptr);

// Returns an upper bound of all numbers in a run, forward and backward.
double largest_number(const Program& program);

}  // namespace programs
