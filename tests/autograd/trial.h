#pragma once

#include <cstdint>
#include <string>

#include "gradwire/rpc/testing/group.h"
#include "gradwire/tests/autograd/check.h"

namespace programs {

// The result of the test of one program.
struct Trial {
  // Empty on success. Otherwise it says what is wrong, shows the program, and says how to repeat it.
  std::string failure;
  // Whether the program also ran in the fast mode.
  bool fast = false;
};

// For the family kExact. Compares the gradients and the calls of hooks with those of one process: in the
// smart mode, and also in the fast mode if every message of the program is used.
Trial try_exact(const gradwire::rpc::testing::Group& group, uint64_t seed, const GeneratorOptions& options);

// For the real families. In every repetition on every group, the gradients must agree with those of one
// process in every bit.
Trial try_real(const std::vector<const gradwire::rpc::testing::Group*>& groups, int repetitions,
               uint64_t seed, const GeneratorOptions& options);

}  // namespace programs
