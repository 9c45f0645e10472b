#include "gradwire/base/threads/sleeper.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire {

Sleeper::Sleeper() : timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (!timer_.valid()) {
    throw Error(absl::ResourceExhaustedError(absl::StrCat("cannot create a timer: ", std::strerror(errno))));
  }
}

void Sleeper::set_alarm(absl::Duration delay) {
  itimerspec when = {};  // All zero: never.
  if (delay != absl::InfiniteDuration()) {
    when.it_value = absl::ToTimespec(std::max(delay, absl::Nanoseconds(1)));
  }
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

// timerfd_settime(2) drops an expiration that has not been read. So a timer that wake() has set must not be
// set again until the thread has read it. No wake-up is lost:
// 1. Set the alarm while the mutex is held, unless wake() has set it since the last sleep. From now on
//    wake_in() and wake() may set it to an earlier time, but wake_in() does not after wake().
// 2. Release the mutex and read. An expired timer stays readable until it is read, so the read returns at
//    once if the alarm went off in between.
// 3. Lock the mutex. A wake() between the read and the lock counts for this sleep, which it finds ended. The
//    thread sees everything that was changed before that call, because it takes the mutex afterwards.
void Sleeper::sleep(Mutex& mutex, absl::Duration at_most) {
  sleeps_indefinitely_ = at_most == absl::InfiniteDuration();
  alarm_set_ = false;
  if (!woken_) set_alarm(at_most);
  mutex.unlock();
  uint64_t times;
  while (::read(timer_.get(), &times, sizeof(times)) < 0 && errno == EINTR) {
  }
  mutex.lock();
  sleeps_indefinitely_ = false;
  woken_ = false;
}

}  // namespace gradwire
