#include "gradwire/transport/loop_sleep.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kDescriptorsId = 1;

}  // namespace

Signal::Signal()
    : eventfd_(Descriptor::from([&] { return ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); })),
      status_(eventfd_.valid() ? absl::OkStatus() : system_status("cannot create an eventfd", errno)) {}

void Signal::raise() const {
  const uint64_t one = 1;
  // The write fails only if the counter is full. Then the signal is raised anyway.
  [[maybe_unused]] const ssize_t written = ::write(eventfd_.get(), &one, sizeof(one));
}

void Signal::clear() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(eventfd_.get(), &count, sizeof(count));
}

absl::Status LoopSleep::start() {
  GRADWIRE_RETURN_IF_ERROR(wake_.status());
  GRADWIRE_RETURN_IF_ERROR(epoll_.add(wake_.fd(), EPOLLIN, kWakeId));
  // Without EPOLLIN: disabled until the first driver leaves. EPOLLONESHOT: after one event the kernel
  // disables the wake-up by itself, so that a thread that drives is not accompanied by one that wakes for
  // nothing.
  return epoll_.add(descriptors_, EPOLLONESHOT, kDescriptorsId);
}

void LoopSleep::set_descriptors_wake(bool yes) {
  MutexLock lock(mutex_);
  epoll_.change(descriptors_, EPOLLONESHOT | (yes ? uint32_t{EPOLLIN} : 0), kDescriptorsId);
  descriptors_wake_.store(yes);
}

bool LoopSleep::leave(absl::Time next_timer) {
  // InfiniteFuture becomes INT64_MAX.
  const int64_t next = absl::ToUnixNanos(next_timer);
  // Both sides write before they read, all sequentially consistent:
  // 1. Here: store the next timer, then read until when the thread sleeps. sleep(): store until when it
  //    sleeps, then read the next timer again. So one of them notices an earlier timer.
  // 2. Here: clear driven_, then read wake_on_leave_. See sleep() for the other side.
  next_timer_nanos_.store(next);
  if (!descriptors_wake_.load()) set_descriptors_wake(true);
  driven_.store(false);
  if (wake_on_leave_.exchange(false)) set_descriptors_wake(true);
  return next < sleeping_until_nanos_.load();
}

void LoopSleep::sleep(const std::atomic<bool>& ended, absl::Duration at_most) {
  const int64_t until = next_timer_nanos_.load();
  sleeping_until_nanos_.store(until);
  // The problem: a driver that is at work may have disabled wake-ups by descriptors. The thread must not
  // sleep without them after the driver has left. So both sides write first and then read the other's flag:
  // 1. This thread sets wake_on_leave_, then checks `driven_`.
  // 2. leave() clears `driven_`, then checks wake_on_leave_ and enables the wake-ups again.
  // If no thread drives, this thread checks itself that the wake-ups are enabled and that the timer is
  // unchanged.
  wake_on_leave_.store(true);
  if (!driven_.load()) {
    wake_on_leave_.store(false);
    if (!descriptors_wake_.load() || next_timer_nanos_.load() != until || ended.load()) return;
  }
  if (until != INT64_MAX) {
    const absl::Duration left = absl::Nanoseconds(until - absl::ToUnixNanos(Clock::system().now()));
    // A little longer: a thread that wakes just before a timer is due would have to sleep again.
    at_most = std::min(at_most, left + absl::Milliseconds(1));
  }
  std::array<epoll_event, 2> room;
  const absl::Span<const epoll_event> events = epoll_.wait_for(absl::MakeSpan(room), at_most);
  // Awake: leave() need not wake this thread for a timer, because it reads the next timer before it sleeps
  // again.
  sleeping_until_nanos_.store(INT64_MIN);
  for (const epoll_event& event : events) {
    if (event.data.u64 == kWakeId) {
      wake_.clear();
    } else {
      // EPOLLONESHOT has disabled the wake-up. The next driver that leaves enables it again.
      MutexLock lock(mutex_);
      descriptors_wake_.store(false);
      descriptors_due_.store(true);
    }
  }
}

}  // namespace gradwire::transport
