#pragma once

#include <cstdint>

namespace gradwire {

// Reading the clock costs more than a pause, so a wait that pauses reads it once in this number of pauses.
inline constexpr uint32_t kPausesPerClock = 8;

}  // namespace gradwire
