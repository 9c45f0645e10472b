#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/executor.h"
#include "base/mutex.h"

namespace gradwire {

// The executor that runs handlers and continuations.
//
// `num_threads` tasks run at a time, in the order they were posted. A task that waits inside a BlockingScope (every
// Future::wait is one) leaves the count and a replacement starts, so one thread suffices for calls nested 50 deep. A
// task that blocks without saying so, on a mutex that another task must release say, is noticed when nothing has
// started for `stall_limit` while tasks wait, and then one thread more starts. There are at most `max_threads`;
// the last one that is not waiting may not wait: its wait fails with ResourceExhausted, never a silent hang. Threads
// in excess of num_threads end when they run out of work.
//
// Thread-safe. shutdown() (or the destructor) runs what is queued and joins every thread; it must not be called from
// a task of the pool.
class ThreadPool : public Executor {
 public:
  struct Options {
    int num_threads = 16;
    int max_threads = 256;
    absl::Duration stall_limit = absl::Milliseconds(10);
    std::string name = "pool";
  };
  explicit ThreadPool(Options options);
  ~ThreadPool() override;

  using Executor::post_clean;
  bool post_clean(Task& task) override;
  void shutdown();

  // Tasks that are queued or running, waiting ones included.
  int pending() const;
  int threads() const;

 protected:
  absl::Status begin_blocking() override;
  void end_blocking() override;

 private:
  struct Worker {
    std::thread thread;
  };

  void work(std::list<Worker>::iterator self);
  void supervise();
  void dispatch_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void start_worker_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int active_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return total_ - blocked_; }
  // Joins threads that have ended; called without the lock.
  void reap();

  const Options options_;

  mutable Mutex mutex_;
  CondVar work_available_;
  CondVar supervisor_wakes_;
  std::deque<Task> queue_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::list<Worker> ended_ ABSL_GUARDED_BY(mutex_);
  int total_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int blocked_ ABSL_GUARDED_BY(mutex_) = 0;
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  // Goes up whenever a task starts: a standstill while tasks are queued is a stall.
  uint64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool supervisor_sleeps_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread supervisor_;
};

}  // namespace gradwire
