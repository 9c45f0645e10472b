#pragma once

#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// A thread that sleeps until it is called, or for a time. Calls while it is awake, or is going to wake by
// itself, cost nothing; one that is to wake it in a while costs the caller a system call and wakes nobody
// until then. All calls but wake() are made with the mutex that sleep() gives up.
class Sleeper {
 public:
  Sleeper();

  // Has it wake in `delay`.
  void call(absl::Duration delay = absl::ZeroDuration()) {
    if (!sleeps_ || (called_ && delay > absl::ZeroDuration())) return;
    called_ = true;
    set_alarm(delay);
  }
  // Ends the sleep under way, or the next.
  void wake() { set_alarm(absl::ZeroDuration()); }

  void sleep(Mutex& mutex, absl::Duration at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  // InfiniteDuration: never. The last call counts.
  void set_alarm(absl::Duration delay);

  // A timerfd(2), which the thread reads.
  const Descriptor timer_;
  // Until somebody calls; and somebody has.
  bool sleeps_ = false;
  bool called_ = false;
};

}  // namespace gradwire
