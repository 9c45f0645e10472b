#pragma once

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/transport/turns/turns.h"

namespace gradwire::transport {

// The timers of an event loop. Used only by the loop's driver.
class LoopTimers {
 public:
  // Runs `task` at the time `when` of Clock::system(). For InfiniteFuture it returns 0 and never runs the
  // task.
  uint64_t schedule_in_loop(absl::Time when, TimedTasks::Task task) {
    return timers_.add(when, std::move(task));
  }
  void cancel_in_loop(uint64_t timer) { (void)timers_.take(timer); }

 protected:
  ~LoopTimers() = default;

  // Runs a task that is due at `now`, and others until the time of the round is over: peers can make many due
  // at the same time. Returns whether one was due.
  bool run_due_in_loop(absl::Time now, Turns& turns) {
    bool any = false;
    while (TimedTasks::Due due = timers_.take_due(now)) {
      if (due.run("a timer of the event loop")) {
        timers_.ended(due);
      } else {
        timers_.failed(due, now);
      }
      any = true;
      if (turns.spent()) break;
    }
    return any;
  }

  TimedTasks timers_;
};

}  // namespace gradwire::transport
