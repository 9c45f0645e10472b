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

// An eventfd(2). While it is raised, an epoll that watches it returns.
class Signal {
 public:
  Signal();
  // Why the signal could not be created; then it must not be used.
  const absl::Status& status() const { return status_; }
  int fd() const { return eventfd_.get(); }
  void raise() const;
  void clear() const;

 private:
  const Descriptor eventfd_;
  const absl::Status status_;
};

// Lets one thread sleep while no thread drives an event loop, until the loop has something to do: an event on
// its descriptors, its first timer, or wake(). While a thread drives and polls the descriptors, their events
// need not wake the sleeping thread.
//
// sleep() is for one thread at a time, which must not be the driver. wake() may be called from any thread.
// All other methods are for the loop's driver.
class LoopSleep {
 public:
  // `descriptors`: the epoll instance of the loop's descriptors. `driven`: whether a thread drives the loop.
  LoopSleep(Epoll epoll, int descriptors, std::atomic<bool>& driven)
      : epoll_(std::move(epoll)), descriptors_(descriptors), driven_(driven) {}
  // Must be called once, before all other methods.
  absl::Status start();

  // Sleeps for `at_most`. Returns at once if no event would wake the thread, or if `ended`.
  void sleep(const std::atomic<bool>& ended, absl::Duration at_most);
  void wake() const { wake_.raise(); }

  // The driver polls the descriptors itself, so their events need not wake the sleeping thread.
  void ignore_descriptors() {
    if (descriptors_wake_.load(std::memory_order_relaxed)) set_descriptors_wake(false);
  }
  // Whether descriptors have woken the thread in sleep() since the last clear_descriptors_due().
  bool descriptors_due() const { return descriptors_due_.load(std::memory_order_relaxed); }
  void clear_descriptors_due() { descriptors_due_.store(false); }

  // The driver leaves: sets `driven` to false. Returns whether the thread in sleep() must be woken, because
  // the first timer is due at `next_timer`, before the thread would wake.
  bool leave(absl::Time next_timer);

 private:
  // Sets whether an event on a descriptor wakes the thread in sleep().
  void set_descriptors_wake(bool yes);

  const Epoll epoll_;
  const int descriptors_;
  const Signal wake_;
  std::atomic<bool>& driven_;

  // Descriptors have woken the thread in sleep().
  std::atomic<bool> descriptors_due_{false};
  // The thread began to sleep while another thread drove. The driver must make descriptors wake it when it
  // leaves.
  std::atomic<bool> wake_on_leave_{false};
  // The time when the first timer is due, and the time when the thread in sleep() will wake, in nanoseconds
  // of the Unix epoch.
  std::atomic<int64_t> next_timer_nanos_{INT64_MAX};
  std::atomic<int64_t> sleeping_until_nanos_{INT64_MIN};

  Mutex mutex_;
  std::atomic<bool> descriptors_wake_{false};  // Changed under mutex_.
};

}  // namespace gradwire::transport
