#pragma once

#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Lets one thread sleep until another thread wakes it, or until a timeout. wake_in() costs nothing while the
// thread is awake or already has a time to wake; otherwise it costs one system call, and no thread wakes
// before `delay` is over. All methods require the mutex that is passed to sleep().
class Sleeper {
 public:
  Sleeper();

  // Wakes the thread after `delay`, if it sleeps without a timeout.
  void wake_in(absl::Duration delay = absl::ZeroDuration()) {
    if (!sleeps_indefinitely_ || woken_ || (alarm_set_ && delay > absl::ZeroDuration())) return;
    alarm_set_ = true;
    set_alarm(delay);
  }
  // Ends the current sleep, or the next one if the thread is awake.
  void wake() {
    woken_ = true;
    set_alarm(absl::ZeroDuration());
  }

  void sleep(Mutex& mutex, absl::Duration at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  // Sets the timer; InfiniteDuration: never. The last call counts.
  void set_alarm(absl::Duration delay);

  // A timerfd(2), which the thread reads.
  const Descriptor timer_;
  // The thread sleeps without a timeout. wake_in() has set the timer since.
  bool sleeps_indefinitely_ = false;
  bool alarm_set_ = false;
  // wake() was called, and no sleep has ended since. Setting the timer again would undo that call.
  bool woken_ = false;
};

}  // namespace gradwire
