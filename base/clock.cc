#include "gradwire/base/clock.h"

#include <time.h>

#include <chrono>

namespace gradwire {

int64_t monotonic_nanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

namespace {

class SystemClock : public Clock {
 public:
  absl::Time now() const override {
    return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }

  void wait_until(Mutex& mutex, CondVar& condition, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    absl::Duration left = deadline - now();
    if (left > absl::ZeroDuration()) condition.wait_for(mutex, left);
  }
};

}  // namespace

Clock& Clock::system() {
  static SystemClock* clock = new SystemClock;
  return *clock;
}

}  // namespace gradwire
