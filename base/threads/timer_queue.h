#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// Tasks ordered by the time when they are due; tasks with the same time stay in the order in which they were
// added. This class neither runs nor destroys tasks, so that the caller can do both after it has released its
// lock. Not thread-safe.
//
// A task that throws is due again after a pause. A periodic task schedules its next run at its end: without
// this it would stop for good. So a task must be able to begin again. The pause is 10 ms, and doubles with
// each failure up to a second.
class TimedTasks {
 public:
  using Task = absl::AnyInvocable<void()>;

 private:
  struct Entry {
    Task task;
    int failures = 0;
  };
  using ByTime = std::map<std::pair<absl::Time, uint64_t>, Entry>;

 public:
  // A task that was taken to be run, or none.
  class Due {
   public:
    Due() = default;
    explicit operator bool() const { return !node_.empty(); }
    // Runs the task. An exception is logged as one of `what`, and false is returned.
    bool run(const char* what) noexcept;

   private:
    friend class TimedTasks;
    explicit Due(ByTime::node_type node) : node_(std::move(node)) {}
    ByTime::node_type node_;
  };

  // Returns an id for take(). For InfiniteFuture it returns 0 and does not take `task`.
  uint64_t add(absl::Time when, Task&& task);
  // Removes and returns the task; returns an empty task if it was already removed.
  Task take(uint64_t id);
  // Removes and returns the first task if it is due at `now`.
  Due take_due(absl::Time now);
  // Call when a task of take_due() has ended.
  void ended(const Due& due);
  // The same for a task that has thrown: it is due again after a pause from `now` on. If it was cancelled
  // while it ran, `due` keeps it. Allocates no memory, the lack of which may be what the task has thrown.
  void failed(Due& due, absl::Time now);

  // The time when the first task is due; InfiniteFuture if there are no tasks.
  absl::Time next() const { return empty() ? absl::InfiniteFuture() : by_time_.begin()->first.first; }
  bool empty() const { return by_time_.empty(); }
  std::size_t size() const { return by_time_.size(); }

 private:
  ByTime by_time_;
  // By id, also of tasks that run: one that is cancelled meanwhile has no entry any more.
  HashMap<uint64_t, absl::Time> times_;
  uint64_t next_id_ = 1;
};

// Runs callbacks at given times of its clock, on its own thread: deadlines, retries, heartbeats. Callbacks
// must be short and internal; user code is posted to an executor. One that throws runs again (TimedTasks).
// Thread-safe. The destructor drops callbacks that have not run. In a forked child the queue of the parent
// takes no callbacks and runs none.
class TimerQueue {
 public:
  using Callback = TimedTasks::Task;

  // Throws Error, ResourceExhausted, if the thread cannot be started.
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
  // Runs and destroys a task. One that throws is scheduled again.
  void run_due(TimedTasks::Due& due);

  Clock& clock_;
  const ProcessMark mark_;

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
