#include "gradwire/base/polling/spin_wait.h"

#include <sched.h>

#include "gradwire/base/clock.h"
#include "gradwire/base/polling/pause_tuner.h"

namespace gradwire {

void yield_core() { ::sched_yield(); }

// A wait passes through three phases: pause instructions, then yields, then the end (false). `polls_`
// counts the pauses, so that only one pause in kPausesPerClock reads the clock; -1 marks the second phase and
// the end.
bool SpinWait::rest() {
  if (end_nanos_ == 0) return false;
  if (start_ == 0) {
    start_ = static_cast<uint64_t>(monotonic_nanoseconds());
    polls_ = 0;
  }
  if (polls_ >= 0 && ++polls_ % kPausesPerClock != 0) {
    cpu_relax();
    return true;
  }
  const uint64_t waited = static_cast<uint64_t>(monotonic_nanoseconds()) - start_;
  if (waited < pause_nanos_) {
    cpu_relax();
    return true;
  }
  polls_ = -1;  // From here on every rest reads the clock: a yield may take long.
  if (waited >= end_nanos_) return false;
  yield_core();
  return true;
}

}  // namespace gradwire
