#pragma once

#include <cstdint>

#include "gradwire/tests/autograd/program.h"

namespace programs {

struct GeneratorOptions {
  Family family = Family::kExact;
  int min_agents = 2;
  int max_agents = 4;
  // Nothing that libtorch's own distributed engine cannot do from C++: references, undefined arguments,
  // results that nobody uses, inputs.
  bool for_libtorch = false;
};

// A valid program; the same seed and options give the same one everywhere. Its numbers may grow too large to
// be exact: see make_program() (check.h).
Program generate(uint64_t seed, const GeneratorOptions& options);

}  // namespace programs
