#pragma once

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/alarm.h"

namespace gradwire {

// A thread that sleeps until it is called, or for a time. Calls while it is awake, or is going to wake by itself, cost
// nothing. All calls but wake() are made with the mutex that sleep() gives up.
class Sleeper {
 public:
  void call(absl::Duration delay = absl::ZeroDuration()) {
    if (!sleeps_ || (called_ && delay > absl::ZeroDuration())) return;
    called_ = true;
    alarm_.set(delay);
  }
  // Whatever it does.
  void wake() { alarm_.wake(); }

  void sleep(Mutex& mutex, absl::Duration at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    sleeps_ = at_most == absl::InfiniteDuration();
    called_ = false;
    alarm_.set(at_most);
    alarm_.sleep(mutex);
    sleeps_ = false;
  }

 private:
  Alarm alarm_;
  // Until somebody calls; and somebody has.
  bool sleeps_ = false;
  bool called_ = false;
};

}  // namespace gradwire
