#pragma once

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gradwire {

// Returns the wall-clock time in seconds since the epoch. Processes on different machines can compare it;
// their Clocks (base/clock.h) are unrelated. Do not use it for deadlines.
inline int64_t unix_seconds() { return absl::ToUnixSeconds(absl::Now()); }

}  // namespace gradwire
