#pragma once

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gradwire {

// Seconds since the epoch by the wall clock: for moments that processes of several machines compare, whose
// Clocks (base/clock.h) have nothing in common. Not for deadlines.
inline int64_t unix_seconds() { return absl::ToUnixSeconds(absl::Now()); }

}  // namespace gradwire
