#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/poller.h"

namespace gradwire {

class PoolPolling;

// Lets one thread sleep until another thread wakes it, or until a timeout. wake_in() costs nothing while the
// thread is awake or already has a time to wake; otherwise it costs one system call, and no thread wakes
// before `delay` is over. All methods require the mutex that is passed to sleep().
class Sleeper {
 public:
  Sleeper();

  // Wakes the thread after `delay`, if it sleeps without a timeout.
  void wake_in(absl::Duration delay = absl::ZeroDuration()) {
    if (!sleeps_indefinitely_ || woken_ || (alarm_set_ && delay > absl::ZeroDuration())) return;
    alarm_set_ = true;
    set_alarm(delay);
  }
  // Ends the current sleep, or the next one if the thread is awake.
  void wake() {
    woken_ = true;
    set_alarm(absl::ZeroDuration());
  }

  void sleep(Mutex& mutex, absl::Duration at_most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

 private:
  // Sets the timer; InfiniteDuration: never. The last call counts.
  void set_alarm(absl::Duration delay);

  // A timerfd(2), which the thread reads.
  const Descriptor timer_;
  // The thread sleeps without a timeout. wake_in() has set the timer since.
  bool sleeps_indefinitely_ = false;
  bool alarm_set_ = false;
  // wake() was called, and no sleep has ended since. Setting the timer again would undo that call.
  bool woken_ = false;
};

// A FIFO queue of tasks that also sums up their expected durations. Not thread-safe.
class TaskQueue {
 public:
  struct Queued {
    Executor::Task task;
    TaskCost* cost = nullptr;
  };

  // Without memory it throws, and leaves `task` alone.
  void push(Executor::Task& task, TaskCost* cost) {
    Queued& added = tasks_.emplace_back();
    added.task = std::move(task);
    added.cost = cost;
    if (cost != nullptr) nanoseconds_ += cost->nanoseconds();
  }
  // REQUIRES: not empty.
  Queued take_front() {
    Queued front = std::move(tasks_.front());
    tasks_.pop_front();
    // The expected duration may have changed since the push.
    if (front.cost != nullptr) nanoseconds_ -= std::min<int64_t>(nanoseconds_, front.cost->nanoseconds());
    if (tasks_.empty()) nanoseconds_ = 0;
    return front;
  }

  bool empty() const { return tasks_.empty(); }
  std::size_t size() const { return tasks_.size(); }
  int64_t nanoseconds() const { return nanoseconds_; }

 private:
  std::deque<Queued> tasks_;
  int64_t nanoseconds_ = 0;
};

// State of a pool that its leader reads without the pool's mutex.
struct LeaderSignal {
  // A queued task may start, or the pool stops. This flag and leader_asleep are sequentially consistent:
  // either post_clean() sees that the leader sleeps, or the leader sees the task before it sleeps.
  std::atomic<bool> startable{false};
  std::atomic<bool> several_queued{false};
  std::atomic<bool> leader_asleep{false};
};

// The executor that runs handlers and continuations.
//
// Tasks: up to `num_threads` tasks run at a time; they start in the order in which they were posted. A task
// that waits inside a BlockingScope (every Future::wait is one) is not counted, and another thread takes its
// place. So one thread suffices for calls nested 50 deep.
//
// Stalls: a task may block without a BlockingScope, for example on a mutex that another task must release.
// The pool detects this when tasks are queued, none has started for `stall_limit`, and the thread of a task
// sleeps. Then one more task may run. If the threads compute, the limit is much longer: a long queue of long
// tasks should not start a thread for each task.
//
// Polling: with a `poller`, one thread without a task is the leader. It drives the poller. When that yields a
// task, the leader runs it itself, so that short tasks wake no other thread. Meanwhile no thread leads.
// Another thread becomes the leader
//   - at once, if tasks of that kind have taken long recently (TaskCost),
//   - when the task waits and its thread does not drive the poller (or no longer does),
//   - otherwise after about a millisecond.
// A thread outside the pool that waits drives the poller too (drive_until).
//
// Threads: there are at most `max_threads`, plus one leader if all of them are in use. If blocking would
// leave no thread that can run, the wait fails with ResourceExhausted. If tasks that block without a
// BlockingScope use up all threads, an error is logged. Threads beyond num_threads, except for a few spare
// ones, end when no tasks are queued.
//
// Thread-safe. shutdown() (or the destructor) runs the queued tasks and the tasks that these post, then joins
// all threads. Neither may be called from a task of the pool. If a task may hold the last reference to the
// pool, call shutdown() before you drop yours. In a forked child the pool of the parent runs nothing: it
// refuses tasks, and shutdown() returns at once.
class ThreadPool : public Executor {
 public:
  struct Options {
    // At least 1, at most max_threads.
    int num_threads = 16;
    int max_threads = 256;
    absl::Duration stall_limit = absl::Milliseconds(10);
    std::string name = "pool";
    std::shared_ptr<Poller> poller;
    WaitPolicy wait;
  };
  // Throws Error, ResourceExhausted, if the system has no threads or no descriptors left.
  explicit ThreadPool(Options options);
  ~ThreadPool() override;

  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost* cost = nullptr) override;
  bool drive_until(const std::atomic<bool>& done, absl::Time deadline) override;
  // Idempotent. Each call returns after all threads have been joined.
  void shutdown();

  // Number of tasks that are queued or running, including those that wait.
  int pending() const;
  int threads() const;

 protected:
  absl::Status begin_blocking(bool drives) override;
  void end_blocking() override;

 private:
  struct Worker {
    std::thread thread;
    pid_t thread_id = 0;  // 0 until it runs. Guarded by mutex_.
  };
  using Queued = TaskQueue::Queued;

  void work(std::list<Worker>::iterator self);
  void run(Queued task);
  // Waits until a task may start, and returns it; returns an empty one if the thread must end. `in_a_row`:
  // number of tasks that the thread has run since it last drove the poller.
  Queued next_task_locked(int& in_a_row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drives the poller until a task may start. Releases the lock meanwhile.
  void lead_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ensures that a thread leads or is about to lead.
  absl::Status ensure_leader_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Must be called after each change of the queue or of the number of free slots.
  void update_startable_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int free_slots_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ensures that enough threads are about to take the tasks that may start. `count_leader`: an awake leader
  // counts as one of them. Pass false if it may have been held up.
  void dispatch_locked(bool count_leader = true) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a thread; fails at max_threads + `beyond` threads, or if the system has none left.
  absl::Status start_worker_locked(int beyond = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wake_all_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void supervise();
  // Appoints a leader if no thread has led since the last check. Returns false if no more checks are needed.
  bool watch_leader_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For a stall: lets one more task run if that may help. Releases the lock in between.
  void relieve_stall_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Joins threads that have ended. Must be called without the lock.
  void reap();

  const Options options_;
  const ProcessMark mark_;

  mutable Mutex mutex_;
  CondVar work_available_;
  // The supervisor sleeps here between its checks.
  Sleeper supervisor_sleeper_ ABSL_GUARDED_BY(mutex_);
  TaskQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> ended_ ABSL_GUARDED_BY(mutex_);
  int total_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of threads that wait for work, and how many of them were notified but have not woken yet.
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int notified_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of threads that were created but have not reached the queue yet.
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of running tasks, and how many of them wait in a BlockingScope.
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int blocked_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of tasks that may run beyond num_threads, because as many seem to block without a BlockingScope.
  int extra_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of tasks started. If it does not change while tasks are queued, the pool is at a standstill.
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of consecutive checks of the supervisor that found a standstill.
  int standstills_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread leads. A thread has been woken or started to become the leader.
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;
  bool leader_on_its_way_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of times that a thread began to lead, and its value at the supervisor's last check.
  uint64_t leader_terms_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t last_leader_terms_ ABSL_GUARDED_BY(mutex_) = 0;
  // Number of consecutive checks of the supervisor that found a leader.
  int checks_with_leader_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  LeaderSignal signal_;
  // The leaders hand polling_->leader() over under mutex_.
  const std::unique_ptr<PoolPolling> polling_;

  std::once_flag joined_;
  std::thread supervisor_;
};

}  // namespace gradwire
