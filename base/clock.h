#pragma once

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Returns the wall-clock time in seconds since the epoch. Processes on different machines can compare it;
// values of Clock are unrelated. Do not use it for deadlines.
inline int64_t unix_seconds() { return absl::ToUnixSeconds(absl::Now()); }

// Nanoseconds of CLOCK_MONOTONIC, for measuring short times. Deadlines use Clock.
int64_t monotonic_nanoseconds();

// The source of time for deadlines. It is monotonic, so a correction of the wall clock neither fires nor
// delays a deadline. Only differences of now() have a meaning. Code that depends on time gets a Clock
// injected; tests use ManualClock instead. Thread-safe. A clock must outlive all objects that refer to it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time now() const = 0;
  // Waits on `condition` until it is notified or until `deadline`; may return early. The caller holds
  // `mutex`.
  virtual void wait_until(Mutex& mutex, CondVar& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The monotonic clock of the machine. It is never destroyed.
  static Clock& system();
};

}  // namespace gradwire
