#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// How a thread waits for an event that is expected soon: it first polls continuously, then yields its core
// between two polls, then sleeps. Waking a sleeping thread costs 20 to 200 us if the core is idle.
struct WaitPolicy {
  // The longest time of each phase. Zero for both: sleep at once. A thread of a pool pauses for longer, and
  // yields for less, where messages come soon (base/polling/pause_tuner.h).
  absl::Duration pause = absl::Microseconds(3);
  absl::Duration yield = absl::Microseconds(150);
  // The part of one core that a thread of a pool may use on average to poll for messages in silences that are
  // longer than a wake-up takes, in addition to as much time as it works. From 0 to 1; 0: it does not poll
  // in such silences.
  double share = 0.1;
};

// A short pause between two polls of a spinning thread.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Lets another thread that is ready run on this core.
void yield_core();

// Polls up to `polls` times, with a pause after each poll. Returns whether `poll()` returned true.
template <typename Poll>
bool spin(int polls, const Poll& poll) {
  for (int i = 0; i < polls; ++i) {
    if (poll()) return true;
    cpu_relax();
  }
  return false;
}

// The progress of one wait through the phases of a WaitPolicy.
//   SpinWait wait(policy);
//   while (!poll() && wait.rest()) {}
class SpinWait {
 public:
  explicit SpinWait(const WaitPolicy& policy)
      : pause_nanos_(nanos(policy.pause)), end_nanos_(pause_nanos_ + nanos(policy.yield)) {}

  // Restarts the wait after a poll that found something. Always returns true.
  bool renew() {
    start_ = 0;
    return true;
  }

  // Pauses or yields once. Returns false when it is time to sleep.
  bool rest();

 private:
  // The time until a deadline may be negative.
  static uint64_t nanos(absl::Duration duration) {
    return duration < absl::ZeroDuration() ? 0 : static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration));
  }

  const uint64_t pause_nanos_;
  const uint64_t end_nanos_;
  uint64_t start_ = 0;
  int polls_ = 0;
};

}  // namespace gradwire
