#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace gradwire::lag {

// The default generator of random numbers of a device.
const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// Draws the seed with which one kernel makes its random numbers. It is drawn when the kernel is launched, so
// the numbers do not depend on the order in which streams run.
uint64_t draw_seed(const at::Generator& generator);

}  // namespace gradwire::lag
