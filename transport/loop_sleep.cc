#include "gradwire/transport/loop_sleep.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

constexpr uint64_t kWakeId = 0;
constexpr uint64_t kDescriptorsId = 1;

}  // namespace

Signal::Signal() : eventfd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

void Signal::give() const {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the signal is there anyway.
  [[maybe_unused]] const ssize_t written = ::write(eventfd_.get(), &one, sizeof(one));
}

void Signal::take() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t read = ::read(eventfd_.get(), &count, sizeof(count));
}

absl::Status LoopSleep::start() {
  GRADWIRE_RETURN_IF_ERROR(epoll_.add(wake_.fd(), EPOLLIN, kWakeId));
  return epoll_.add(descriptors_, EPOLLONESHOT, kDescriptorsId);
}

void LoopSleep::let_descriptors_wake(bool yes) {
  MutexLock lock(mutex_);
  epoll_.change(descriptors_, EPOLLONESHOT | (yes ? uint32_t{EPOLLIN} : 0), kDescriptorsId);
  descriptors_wake_.store(yes);
}

bool LoopSleep::leave(absl::Time next_timer) {
  // The largest number for InfiniteFuture.
  const int64_t next = absl::ToUnixNanos(next_timer);
  next_timer_nanos_.store(next);
  if (!descriptors_wake_.load()) let_descriptors_wake(true);
  driven_.store(false);
  if (turned_away_.exchange(false)) let_descriptors_wake(true);
  return next < sleeping_until_nanos_.load();
}

void LoopSleep::sleep(const std::atomic<bool>& ended) {
  const int64_t until = next_timer_nanos_.load();
  sleeping_until_nanos_.store(until);
  // A driver that leaves after this lets descriptors wake this thread again.
  turned_away_.store(true);
  if (!driven_.load()) {
    turned_away_.store(false);
    if (!descriptors_wake_.load() || next_timer_nanos_.load() != until || ended.load()) return;
  }
  int milliseconds = -1;
  if (until != INT64_MAX) {
    const int64_t left = until - absl::ToUnixNanos(Clock::system().now());
    // Rounded up: a thread that woke just before a timer is due would have to sleep again.
    milliseconds = static_cast<int>(std::clamp<int64_t>(left / 1'000'000 + 1, 0, 3'600'000));
  }
  std::array<epoll_event, 2> room;
  const absl::Span<const epoll_event> events = epoll_.wait(absl::MakeSpan(room), milliseconds);
  sleeping_until_nanos_.store(INT64_MIN);
  for (const epoll_event& event : events) {
    if (event.data.u64 == kWakeId) {
      wake_.take();
    } else {
      // It was for once. Whoever leaves next sets it again.
      MutexLock lock(mutex_);
      descriptors_wake_.store(false);
      descriptors_due_.store(true);
    }
  }
}

}  // namespace gradwire::transport
