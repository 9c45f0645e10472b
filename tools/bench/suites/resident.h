#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gradwire::bench {

// Number of floats of the parameter server in the cases push_pull.
inline constexpr int64_t kServerFloats = (1 << 20) / 4;

// Returns the parameter with this number of floats. There is one for each size; the first call creates it.
// Thread-safe.
at::Tensor resident_parameter(int64_t floats);

// Sleeps for the given time, at most a second. Returns its argument.
int64_t sleep_for(int64_t microseconds);

// Reads every element, on the threads that libtorch is configured to use, and returns the sum.
at::Tensor sum_of(const at::Tensor& x);

}  // namespace gradwire::bench
