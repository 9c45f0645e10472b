#pragma once

#include <cstdint>

#include "gradwire/tests/autograd/program.h"

namespace programs {

struct GeneratorOptions {
  Family family = Family::kExact;
  int min_agents = 2;
  int max_agents = 4;
  // Leave out what the distributed engine of libtorch does not support from C++: references, undefined
  // arguments, unused results, and inputs of a pass.
  bool for_libtorch = false;
};

// Returns a valid program. The same seed and options give the same program on every machine. Its numbers may
// grow too large to be exact; make_program() (check.h) avoids such programs.
Program generate(uint64_t seed, const GeneratorOptions& options);

}  // namespace programs
