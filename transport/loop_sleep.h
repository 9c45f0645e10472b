#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/io/epoll.h"
#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// An eventfd(2), which makes an epoll that watches it return.
class Signal {
 public:
  Signal();
  int fd() const { return eventfd_.get(); }
  void give() const;
  void take() const;

 private:
  const Descriptor eventfd_;
};

// The sleep of the one thread that waits until an event loop, which nobody drives, has something to do: an
// event of the loop's descriptors, its first timer, or wake(). Descriptors need not wake it while somebody
// drives and looks at them.
//
// sleep() is for one thread at a time, which does not drive; wake() for any; all else for the loop's driver.
class LoopSleep {
 public:
  // `descriptors` watches the loop's; `driven`: whether somebody drives.
  LoopSleep(Epoll epoll, int descriptors, std::atomic<bool>& driven)
      : epoll_(std::move(epoll)), descriptors_(descriptors), driven_(driven) {}
  // Once, before all else.
  absl::Status start();

  // Returns at once while nobody would wake it, and when `ended`.
  void sleep(const std::atomic<bool>& ended);
  void wake() const { wake_.give(); }

  // The driver finds itself what descriptors bring.
  void ignore_descriptors() {
    if (descriptors_wake_.load(std::memory_order_relaxed)) let_descriptors_wake(false);
  }
  // Whether descriptors have woken the thread in sleep() since they were looked at last.
  bool descriptors_due() const { return descriptors_due_.load(std::memory_order_relaxed); }
  void look_at_descriptors() { descriptors_due_.store(false); }

  // The driver leaves, with `driven` set to false. Whether the thread in sleep() has to be woken since the
  // first timer is due at `next_timer`, before it would wake.
  bool leave(absl::Time next_timer);

 private:
  // Whether a descriptor's event may wake the thread in sleep().
  void let_descriptors_wake(bool yes);

  const Epoll epoll_;
  const int descriptors_;
  const Signal wake_;
  std::atomic<bool>& driven_;

  // They woke the thread in sleep().
  std::atomic<bool> descriptors_due_{false};
  // The thread in sleep() woke up and was turned away by a driver.
  std::atomic<bool> turned_away_{false};
  // When the first timer is due, and for when the thread in sleep() has set its alarm, in nanoseconds of the
  // Unix epoch.
  std::atomic<int64_t> next_timer_nanos_{INT64_MAX};
  std::atomic<int64_t> sleeping_until_nanos_{INT64_MIN};

  Mutex mutex_;
  std::atomic<bool> descriptors_wake_{false};  // Changed under mutex_.
};

}  // namespace gradwire::transport
