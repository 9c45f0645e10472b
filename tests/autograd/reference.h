#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/tests/autograd/program.h"

namespace programs {

// What a run of a program ends with.
struct Outcome {
  // Empty when all went well.
  std::string error;
  // One for each leaf; undefined where it has none.
  std::vector<at::Tensor> gradients;
  // How often each hook was called, with a gradient and with the undefined one: the program's hooks, then the
  // leaves'.
  std::vector<std::pair<int, int>> hook_calls;
};

// What the run in one process tells of a program.
struct Traits {
  // In every pass a gradient comes to at least one tensor of every message that has tensors that require
  // grad: then a backward that takes everything sent as used ends.
  bool messages_used = true;
  // The same for all tensors of every message.
  bool tensors_used = true;
};

// Runs the program in this process with libtorch's own engine: a message is a clone().
Outcome run_here(const Program& program, Traits* traits = nullptr);

// An upper bound of all numbers in a run, forward and backward.
double largest_number(const Program& program);

}  // namespace programs
