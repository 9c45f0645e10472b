#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gradwire::bench {

// Floats of a parameter server in the cases push_pull.
inline constexpr int64_t kServerFloats = (1 << 20) / 4;

// A parameter that lies in this process from the first call on, one for each size. Thread-safe.
at::Tensor resident_parameter(int64_t floats);

// Sleeps, at most a second, and returns its argument.
int64_t sleep_for(int64_t microseconds);

// Adds up one thread's worth of reading.
at::Tensor sum_of(const at::Tensor& x);

}  // namespace gradwire::bench
