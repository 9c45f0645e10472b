#pragma once

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/reference.h"

namespace programs {

struct RunOptions {
  gradwire::autograd::BackwardMode mode = gradwire::autograd::BackwardMode::kSmart;
};

// Runs the program on the first program.agents workers of the group, and reads the gradients on each of them.
// Thread-safe: several threads may run programs on one group.
//
// Every wait is limited to a minute. The outcome is also an error if a worker has a gradient of a tensor that
// is not one of its leaves, if .grad of a leaf was set, or if a worker does not release the context.
Outcome run_distributed(const gradwire::rpc::testing::Group& group, const Program& program,
                        const RunOptions& options = {});

}  // namespace programs
