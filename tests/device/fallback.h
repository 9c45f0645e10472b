#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace gradwire::lag {

// Runs any operator that has no kernel of its own: puts the operator of the CPU into the current stream. See
// fallback.cc.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The same for an operator that is given with its arguments. Returns its results.
torch::jit::Stack run_on_device(const c10::OperatorHandle& op, torch::jit::Stack arguments);

}  // namespace gradwire::lag
