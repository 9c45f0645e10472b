#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "gradwire/tests/autograd/program.h"

namespace programs {

// How often a hook was called.
struct HookCalls {
  // Calls with a defined gradient, and with the undefined one.
  std::atomic<int> defined{0};
  std::atomic<int> undefined{0};
};

// The state of a run of a program that all its blocks share: the leaves of all workers, and the counts of the
// hooks' calls. Several workers may share one Site, because a worker uses only its own leaves.
struct Site {
  // `bounds`: compute with absolute values, so that no number of a normal run exceeds `largest`.
  explicit Site(const Program& program, bool bounds = false);

  const Program& program;
  const bool bounds;
  // One tensor for each leaf of the program.
  std::vector<at::Tensor> leaves;
  // One entry for each hook of the program, then one for each leaf. Shared with the hooks, because a pass
  // that failed may still call some of them.
  const std::shared_ptr<std::vector<HookCalls>> hooks;
  // With `bounds`: the largest element of all values so far.
  double largest = 0;
};

// Runs an operation of `block` that involves neither a message nor a reference.
void run_operation(Site& site, const Block& block, const Operation& operation,
                   std::vector<at::Tensor>& values);

// Returns the grad_roots of a pass, with an undefined tensor for each root without one. Returns an empty list
// if no root has one.
std::vector<at::Tensor> root_gradients(const Site& site, const Pass& pass,
                                       const std::vector<at::Tensor>& roots);

}  // namespace programs
