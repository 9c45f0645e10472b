#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "gradwire/tests/autograd/program.h"

namespace programs {

struct HookCalls {
  // With a gradient, and with the undefined one.
  std::atomic<int> defined{0};
  std::atomic<int> undefined{0};
};

// What a run of a program has besides its frames: the leaves of all workers, and counts of what its hooks
// saw. A worker touches its own leaves alone, so several may share one.
struct Site {
  // bounds: with absolute values throughout, so that every number of a real run stays below what this one
  // sees.
  explicit Site(const Program& program, bool bounds = false);

  const Program& program;
  const bool bounds;
  // One for each leaf.
  std::vector<at::Tensor> leaves;
  // What the hooks saw: the program's, then the leaves'. A pass that failed may still call some.
  const std::shared_ptr<std::vector<HookCalls>> hooks;
  // With `bounds`: the largest number that a value had.
  double largest = 0;
};

// Runs an operation of `block` that is neither a message nor about a reference.
void run_operation(Site& site, const Block& block, const Operation& operation,
                   std::vector<at::Tensor>& values);

// The grad_roots of a pass, undefined where none is given; none at all where none of them is.
std::vector<at::Tensor> root_gradients(const Site& site, const Pass& pass,
                                       const std::vector<at::Tensor>& roots);

}  // namespace programs
