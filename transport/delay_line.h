#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"

namespace gradwire::transport {

// Runs actions in the order in which they were added, each at its time or later, one at a time and without
// holding a lock. An action runs on the thread that adds a due action, or on the thread of the timer queue.
// Thread-safe.
class DelayLine : public std::enable_shared_from_this<DelayLine> {
 public:
  using Action = std::function<void()>;

  // `timers` must outlive all calls.
  explicit DelayLine(TimerQueue& timers) : timers_(timers) {}

  void add(absl::Duration delay, Action action);
  // Whether no action waits or runs.
  bool idle();
  // Makes all waiting actions due now.
  void make_all_due();
  // Drops all waiting actions.
  void discard();

 private:
  struct Item {
    absl::Time when;
    Action action;
  };

  void run_due();

  TimerQueue& timers_;
  Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::transport
