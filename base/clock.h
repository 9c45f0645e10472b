#pragma once

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// The time that deadlines are reckoned in: monotonic, so that a corrected wall clock neither fires nor delays
// them. Only differences of now() mean anything. Injected wherever time matters; ManualClock stands in for it
// in tests. Thread-safe. A clock outlives everything that was given it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time now() const = 0;
  // Waits on `condition` (whose `mutex` is held) until notified or until `deadline`; may wake early.
  virtual void wait_until(Mutex& mutex, CondVar& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The machine's own clock; lives for ever.
  static Clock& system();
};

}  // namespace gradwire
