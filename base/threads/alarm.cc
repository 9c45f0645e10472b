#include "gradwire/base/threads/alarm.h"

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
namespace {

int make_timer() {
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (timer < 0) {
    throw Error(absl::ResourceExhaustedError(absl::StrCat("cannot make a timer: ", std::strerror(errno))));
  }
  return timer;
}

}  // namespace

Alarm::Alarm() : timer_(make_timer()) {}

Alarm::~Alarm() { ::close(timer_); }

void Alarm::set(absl::Duration delay) {
  itimerspec when = {};  // All zero: never.
  if (delay != absl::InfiniteDuration()) {
    when.it_value = absl::ToTimespec(std::max(delay, absl::Nanoseconds(1)));
  }
  ::timerfd_settime(timer_, 0, &when, nullptr);
}

void Alarm::sleep(Mutex& mutex) {
  mutex.unlock();
  uint64_t times;
  while (::read(timer_, &times, sizeof(times)) < 0 && errno == EINTR) {
  }
  mutex.lock();
}

}  // namespace gradwire
