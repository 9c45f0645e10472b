#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"

namespace gradwire::transport {

// Runs actions in the order they were added, each at its time or later, one at a time and without a lock
// held: on the thread that adds one that is due, or on the timer queue's. Thread-safe.
class DelayLine : public std::enable_shared_from_this<DelayLine> {
 public:
  using Action = std::function<void()>;

  // `timers` outlives the line's use.
  explicit DelayLine(TimerQueue& timers) : timers_(timers) {}

  void add(absl::Duration delay, Action action);
  // Whether nothing is waiting or running.
  bool idle();
  // Makes all that waits due now.
  void hurry();
  // Drops all that waits.
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
