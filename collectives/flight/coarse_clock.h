#pragma once

#include <time.h>

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::collectives {

// A time of Clock::system() in milliseconds since its epoch, up to kCoarseClockLag milliseconds late. Reading
// it costs a quarter of reading Clock::system().
using CoarseTime = int64_t;
inline constexpr CoarseTime kCoarseClockLag = 10;

inline absl::Time to_time(CoarseTime time) { return absl::UnixEpoch() + absl::Milliseconds(time); }

inline CoarseTime coarse_now() {
#if defined(CLOCK_MONOTONIC_COARSE)
  timespec now{};
  if (clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0) {
    return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
  }
#endif
  return absl::ToInt64Milliseconds(Clock::system().now() - absl::UnixEpoch());
}

}  // namespace gradwire::collectives
