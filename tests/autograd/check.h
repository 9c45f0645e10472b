#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gradwire/tests/autograd/generator.h"
#include "gradwire/tests/autograd/program.h"
#include "gradwire/tests/autograd/reference.h"

namespace programs {

// The program of a seed: the first one that comes of it whose numbers are exact in every order of additions
// (in the family kExact). Throws std::logic_error, with the program's text, when libtorch refuses it.
Program make_program(uint64_t seed, const GeneratorOptions& options);

// Which calls of hooks are counted.
enum class Hooks { kNone, kDefined, kAll };

// What differs, or "". `bits`: the gradients must agree in every bit, else in their numbers.
std::string difference(const Program& program, const Outcome& expected, const Outcome& got, bool bits,
                       Hooks hooks = Hooks::kAll);

// A smaller program for which `fails` holds, as it does for `program`.
Program shrink(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace programs
