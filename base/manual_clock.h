#pragma once

#include <vector>

#include "gradwire/base/clock.h"

namespace gradwire {

// A clock that changes only when a test calls advance(). Thread-safe.
class ManualClock : public Clock {
 public:
  absl::Time now() const override;
  void wait_until(Mutex& mutex, CondVar& condition, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Adds `step` to the time and wakes all waits.
  void advance(absl::Duration step);

 private:
  struct Waiter {
    Mutex* mutex;
    CondVar* condition;
  };

  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
  std::vector<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire
