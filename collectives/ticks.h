#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace gradwire::collectives {

// A time that costs a quarter of what the clock does. Its unit is the processor's: TickScale turns differences into
// durations.
inline int64_t ticks_now() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__rdtsc());
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

// Learns the unit by comparing with the clock: from its construction to each question.
class TickScale {
 public:
  TickScale() : ticks_(ticks_now()), clock_(std::chrono::steady_clock::now()) {}

  // Nanoseconds of one tick.
  double unit() const {
    const double ticks = static_cast<double>(ticks_now() - ticks_);
    const std::chrono::duration<double, std::nano> passed = std::chrono::steady_clock::now() - clock_;
    return ticks > 0 ? passed.count() / ticks : 1;
  }

 private:
  const int64_t ticks_;
  const std::chrono::steady_clock::time_point clock_;
};

}  // namespace gradwire::collectives
