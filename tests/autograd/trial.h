#pragma once

#include <cstdint>
#include <string>

#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/autograd/check.h"

namespace programs {

// What a trial found out.
struct Trial {
  // "" when all is well; else what is wrong, the program, and how to see it again.
  std::string failure;
  // The fast mode was tried too.
  bool fast = false;
};

// The family kExact: gradients, which leaves have none, and calls of hooks are those of one process; in the
// smart mode, and in the fast one where everything that is sent is used.
Trial try_exact(const gradwire::rpc::testing::Group& group, uint64_t seed, const GeneratorOptions& options);

// The real families: on every group, and in every repetition, the bits of the gradients are those of one
// process.
Trial try_real(const std::vector<const gradwire::rpc::testing::Group*>& groups, int repetitions,
               uint64_t seed, const GeneratorOptions& options);

}  // namespace programs
