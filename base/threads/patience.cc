#include "gradwire/base/threads/patience.h"

#include <time.h>

namespace gradwire {
namespace {

// Between two looks at the clock while pausing: the clock costs more than the pause.
constexpr int kPausesPerClock = 8;

uint64_t now_nanos() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

bool Patience::rest() {
  if (end_ticks_ == 0) return false;
  if (start_ == 0) {
    start_ = now_nanos();
    looks_ = 0;
  }
  if (looks_ >= 0 && ++looks_ % kPausesPerClock != 0) {
    cpu_relax();
    return true;
  }
  const uint64_t waited = now_nanos() - start_;
  if (waited >= end_ticks_) return false;
  if (waited < pause_ticks_) {
    cpu_relax();
  } else {
    looks_ = -1;  // From here on every look reads the clock: a yield may take long.
    ::sched_yield();
  }
  return true;
}

}  // namespace gradwire
