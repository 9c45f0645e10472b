#pragma once

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/reference.h"

namespace programs {

struct RunOptions {
  gradwire::autograd::BackwardMode mode = gradwire::autograd::BackwardMode::kSmart;
};

// Runs the program over the first program.agents workers of the group and reads the gradients on each of
// them. Several threads may do so at a time.
//
// Nothing that waits takes longer than a minute. The outcome is an error, too, when there is a gradient of
// what is no leaf of the worker, when a leaf's .grad is touched, or when the context does not go from every
// worker.
Outcome run_distributed(const gradwire::rpc::testing::Group& group, const Program& program,
                        const RunOptions& options = {});

}  // namespace programs
