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

// No wake-up is lost between the unlock and the read:
// 1. Set the alarm while the mutex is held. From now on wake_in() and wake() may set it to an earlier time.
// 2. Release the mutex and read. An expired timer stays readable until it is read, so the read returns at
//    once if the alarm went off in between.
void Sleeper::sleep(Mutex& mutex, absl::Duration at_most) {
  sleeps_indefinitely_ = at_most == absl::InfiniteDuration();
  alarm_set_ = false;
  set_alarm(at_most);
  mutex.unlock();
  uint64_t times;
  while (::read(timer_.get(), &times, sizeof(times)) < 0 && errno == EINTR) {
  }
  mutex.lock();
  sleeps_indefinitely_ = false;
}

}  // namespace gradwire
