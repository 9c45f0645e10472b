#pragma once

#include <cstdint>
#include <mutex>
#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/threads/timed_tasks.h"

namespace gradwire {

// Runs callbacks at given times of its clock on one thread of its own: deadlines, retries, heartbeats.
// Callbacks are short and internal; user code goes through an executor. Thread-safe. The destructor drops
// what has not run.
class TimerQueue {
 public:
  using Callback = TimedTasks::Task;

  explicit TimerQueue(Clock& clock = Clock::system());
  ~TimerQueue();

  // Runs `callback` once `when` has come, at once if it has already. Returns a handle for cancel(), or 0 when
  // the callback will never run: `when` is infinite, or the queue has shut down.
  uint64_t schedule(absl::Time when, Callback callback);
  // False if the callback has run, is running, or was never scheduled.
  bool cancel(uint64_t id);
  // Drops all that is scheduled and joins the thread; idempotent. Not to be called from a callback.
  void shutdown();

  Clock& clock() const { return clock_; }
  std::size_t size() const;

 private:
  void run();

  Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  TimedTasks tasks_ ABSL_GUARDED_BY(mutex_);
  // When the thread wakes by itself; the infinite past while it is awake.
  absl::Time sleeps_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire
