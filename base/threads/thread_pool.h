#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/poller.h"
#include "gradwire/base/threads/sleeper.h"
#include "gradwire/base/threads/task_queue.h"

namespace gradwire {

// What a pool's leader asks without the pool's mutex.
struct LeaderSignal {
  // A task is queued and may start, or the pool stops. Orders post_clean() and the leader's falling asleep,
  // with leader_asleep.
  std::atomic<bool> startable{false};
  std::atomic<bool> several_queued{false};
  std::atomic<bool> leader_asleep{false};
};

// The executor that runs handlers and continuations.
//
// `num_threads` tasks run at a time and are started in the order they were posted. A task that waits inside a
// BlockingScope (every Future::wait is one) leaves the count and a replacement starts, so one thread suffices
// for calls nested 50 deep. A task that blocks without saying so, on a mutex that another task must release
// say, is noticed when nothing has started for `stall_limit` while tasks wait and its thread sleeps; then one
// task more may run. Threads that compute are given longer, lest a long queue of long tasks start a thread
// for each.
//
// With a `poller`, one thread that has no task leads: it drives the poller, and when that brings a task, runs
// it itself, so that what is short wakes nobody. While it runs one nobody leads. Another thread takes the
// lead at once when tasks of that kind have been taking long (TaskCost), when the task waits and has stopped
// driving the poller itself, or else after kUnattended. A thread outside the pool that waits drives the
// poller too (look_until).
//
// There are at most `max_threads`, and one more to lead where all of them are in use. If blocking would leave
// no thread that can run, the wait fails with ResourceExhausted. When tasks that block without saying so have
// used up all of them, an error is logged. Threads in excess of num_threads, but for a few spare ones, end
// when they run out of work.
//
// Thread-safe. shutdown() (or the destructor) runs what is queued, and what that posts, and joins every
// thread. Neither may be called from a task of the pool: where a task may hold the last reference, call
// shutdown() before letting go.
class ThreadPool : public Executor {
 public:
  struct Options {
    // At least 1; no more than max_threads.
    int num_threads = 16;
    int max_threads = 256;
    absl::Duration stall_limit = absl::Milliseconds(10);
    std::string name = "pool";
    std::shared_ptr<Poller> poller;
    WaitPolicy wait;
  };
  explicit ThreadPool(Options options);
  ~ThreadPool() override;

  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost* cost = nullptr) override;
  bool look_until(const std::atomic<bool>& done, absl::Time deadline) override;
  // Idempotent; every caller returns when all threads are joined.
  void shutdown();

  // Tasks that are queued or running, waiting ones included.
  int pending() const;
  int threads() const;

 protected:
  absl::Status begin_blocking(bool looks) override;
  void end_blocking() override;

 private:
  struct Worker {
    std::thread thread;
    pid_t thread_id = 0;  // 0 until it runs. Guarded by mutex_.
  };
  using Queued = TaskQueue::Queued;

  void work(std::list<Worker>::iterator self);
  void run(Queued task);
  // Waits for a task that may start and takes it; none when the thread is to end. `in_a_row`: tasks that the
  // thread has run since it looked at the poller last.
  Queued next_task_locked(int& in_a_row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drives the poller until a task may start. The lock is given up meanwhile.
  void lead_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sees to it that some thread leads, or is about to.
  void ensure_leader_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // After every change of the queue or the free places.
  void update_startable_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int free_places_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sees to it that as many threads are on their way to the queue as there are tasks that may start. A leader
  // that is awake is one of them, unless it has been away for too long.
  void dispatch_locked(bool count_leader = true) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `beyond` max_threads.
  bool start_worker_locked(int beyond = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void wake_all_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void supervise();
  // Sends a leader where one has been away for too long. False when there is none to watch.
  bool watch_leader_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing started for `stall_limit`: lets one task more run if that may help. The lock is given up in
  // between.
  void relieve_stall_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Joins threads that have ended; called without the lock.
  void reap();

  const Options options_;

  mutable Mutex mutex_;
  CondVar work_available_;
  // Where the supervisor is between its looks.
  Sleeper supervisor_sleep_ ABSL_GUARDED_BY(mutex_);
  TaskQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> ended_ ABSL_GUARDED_BY(mutex_);
  int total_ ABSL_GUARDED_BY(mutex_) = 0;
  // Threads that wait for work, and how many of them have been notified and not yet woken.
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int notified_ ABSL_GUARDED_BY(mutex_) = 0;
  // Threads created that have not looked at the queue yet.
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;
  // Tasks that run, and how many of them wait.
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int blocked_ ABSL_GUARDED_BY(mutex_) = 0;
  // Tasks that may run beyond num_threads, because as many seem to block without saying so.
  int extra_ ABSL_GUARDED_BY(mutex_) = 0;
  // Goes up whenever a task starts: a standstill while tasks are queued is a stall.
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  // Looks of the supervisor in a row that found a standstill.
  int standstills_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread leads. A thread is on its way to lead.
  bool leading_ ABSL_GUARDED_BY(mutex_) = false;
  bool leader_coming_ ABSL_GUARDED_BY(mutex_) = false;
  // Goes up whenever a thread begins to lead, and what it was when the supervisor looked last.
  uint64_t led_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t led_before_ ABSL_GUARDED_BY(mutex_) = 0;
  // Looks of the supervisor in a row that found somebody leading.
  int attended_looks_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  LeaderSignal signal_;

  std::once_flag joined_;
  std::thread supervisor_;
};

}  // namespace gradwire
