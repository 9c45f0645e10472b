#include "gradwire/base/clock.h"

#include <chrono>

namespace gradwire {
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
