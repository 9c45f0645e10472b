#pragma once

#include <cstdint>

namespace gradwire {

// Nanoseconds of CLOCK_MONOTONIC, for measuring short times. Deadlines use Clock.
int64_t monotonic_nanoseconds();

}  // namespace gradwire
