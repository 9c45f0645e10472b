#include "gradwire/base/threads/spin_wait.h"

#include <sched.h>
#include <time.h>

namespace gradwire {
namespace {

// Reading the clock costs more than a pause.
constexpr int kPausesPerClock = 8;

uint64_t now_nanos() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

void yield_core() { ::sched_yield(); }

// A wait passes through three phases: pause instructions, then yields, then the end (false). `polls_`
// counts the pauses, so that only one pause in kPausesPerClock reads the clock; -1 marks the second phase.
bool SpinWait::rest() {
  if (end_nanos_ == 0) return false;
  if (start_ == 0) {
    start_ = now_nanos();
    polls_ = 0;
  }
  if (polls_ >= 0 && ++polls_ % kPausesPerClock != 0) {
    cpu_relax();
    return true;
  }
  const uint64_t waited = now_nanos() - start_;
  if (waited >= end_nanos_) return false;
  if (waited < pause_nanos_) {
    cpu_relax();
  } else {
    polls_ = -1;  // From here on every rest reads the clock: a yield may take long.
    yield_core();
  }
  return true;
}

}  // namespace gradwire
