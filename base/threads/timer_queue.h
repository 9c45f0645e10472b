#pragma once

#include <cstdint>
#include <mutex>
#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/threads/timed_tasks.h"

namespace gradwire {

// Runs callbacks at given times of its clock, on its own thread: deadlines, retries, heartbeats. Callbacks
// must be short and internal; user code is posted to an executor. Thread-safe. The destructor drops callbacks
// that have not run.
class TimerQueue {
 public:
  using Callback = TimedTasks::Task;

  explicit TimerQueue(Clock& clock = Clock::system());
  ~TimerQueue();

  // Runs `callback` at the time `when`, or at once if `when` has passed. Returns a handle for cancel(), or 0
  // if the callback will never run: `when` is infinite, or the queue has shut down.
  uint64_t schedule(absl::Time when, Callback callback);
  // Returns false if the callback has run, is running, or was never scheduled.
  bool cancel(uint64_t id);
  // Drops all scheduled callbacks and joins the thread. Idempotent. Must not be called from a callback.
  void shutdown();

  Clock& clock() const { return clock_; }
  std::size_t size() const;

 private:
  void run();

  Clock& clock_;

  mutable Mutex mutex_;
  CondVar changed_;
  TimedTasks tasks_ ABSL_GUARDED_BY(mutex_);
  // When the thread will wake without a notification; the infinite past while it is awake.
  absl::Time sleeps_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace gradwire
