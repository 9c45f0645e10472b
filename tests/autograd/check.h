#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gradwire/tests/autograd/generator.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/reference.h"

namespace programs {

// Returns the program of a seed. In the family kExact it generates programs from the seed until the numbers
// of one are exact for every order of additions. Throws std::logic_error, with the program's text, if
// libtorch cannot run the program.
Program make_program(uint64_t seed, const GeneratorOptions& options);

// The calls of hooks that difference() compares: none, those with a defined gradient, or all.
enum class Hooks { kNone, kDefined, kAll };

// Describes the differences between two outcomes, or returns "". `bits`: whether the gradients must agree in
// every bit. Otherwise their numbers must be equal.
std::string difference(const Program& program, const Outcome& expected, const Outcome& got, bool bits,
                       Hooks hooks = Hooks::kAll);

// Returns a smaller program for which `fails` is true. It must be true for `program`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace programs
