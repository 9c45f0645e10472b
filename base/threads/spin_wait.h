#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gradwire {

// How a thread waits for what is expected soon: it looks again at once, then lets other threads of the core
// run between two looks, then sleeps. Waking a sleeping thread costs 30 to 50 us where the core idles.
struct WaitPolicy {
  // Zero for both: sleep at once.
  absl::Duration pause = absl::Microseconds(3);
  absl::Duration yield = absl::Microseconds(150);
};

// A moment's rest for a thread that looks in a loop.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Polls up to `polls` times in a row with a pause after each; whether `poll()` returned true.
template <typename Poll>
bool spin(int polls, const Poll& poll) {
  for (int i = 0; i < polls; ++i) {
    if (poll()) return true;
    cpu_relax();
  }
  return false;
}

// How far one wait has come through a WaitPolicy.
//   SpinWait wait(policy);
//   while (!poll() && wait.rest()) {}
class SpinWait {
 public:
  explicit SpinWait(const WaitPolicy& policy)
      : pause_nanos_(nanos(policy.pause)), end_nanos_(pause_nanos_ + nanos(policy.yield)) {}

  // Something was found: the wait begins anew. Always true.
  bool renew() {
    start_ = 0;
    return true;
  }

  // Rests a moment. False when it is time to sleep.
  bool rest();

 private:
  // What is left until a deadline may be negative.
  static uint64_t nanos(absl::Duration duration) {
    return duration < absl::ZeroDuration() ? 0 : static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration));
  }

  const uint64_t pause_nanos_;
  const uint64_t end_nanos_;
  uint64_t start_ = 0;
  int polls_ = 0;
};

}  // namespace gradwire
