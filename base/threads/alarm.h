#pragma once

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// What one thread sleeps on, and others wake it by: now, or in a while, which costs them a system call and wakes nobody
// until then. Thread-safe, but for sleep(), which is for the one thread.
class Alarm {
 public:
  Alarm();
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Ends the sleep under way, or the next. The last call counts: set(absl::Milliseconds(1)) behind wake() may delay the
  // waking by so long. InfiniteDuration: never.
  void set(absl::Duration delay);
  void wake() { set(absl::ZeroDuration()); }

  // Gives up `mutex` until it is time.
  void sleep(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  const int timer_;
};

}  // namespace gradwire
