#include "gradwire/base/threads/timer_queue.h"

#include <pthread.h>

#include <utility>

namespace gradwire {

TimerQueue::TimerQueue(Clock& clock) : clock_(clock), thread_([this] { run(); }) {}

TimerQueue::~TimerQueue() { shutdown(); }

uint64_t TimerQueue::schedule(absl::Time when, Callback callback) {
  MutexLock lock(mutex_);
  if (stopping_) return 0;
  const uint64_t id = tasks_.add(when, std::move(callback));
  // Cancelling a timer does not wake the thread. It may wake at the time of a cancelled timer, which does not
  // delay later ones.
  if (when < sleeps_until_) changed_.notify_one();
  return id;
}

bool TimerQueue::cancel(uint64_t id) {
  Callback dropped;  // Destroyed outside the lock.
  MutexLock lock(mutex_);
  dropped = tasks_.take(id);
  return dropped != nullptr;
}

// The thread publishes `sleeps_until_` and begins to wait under the lock, and schedule() compares with it
// under the same lock. So a timer that is due earlier wakes a thread that waits, and is seen by one that
// does not wait yet. A callback runs, and is destroyed, without the lock, because it may schedule or cancel
// timers.
void TimerQueue::run() {
  pthread_setname_np(pthread_self(), "timers");
  mutex_.lock();
  while (!stopping_) {
    Callback callback = tasks_.take_due(clock_.now());
    if (callback == nullptr) {
      sleeps_until_ = tasks_.next();
      if (tasks_.empty()) {
        changed_.wait(mutex_);
      } else {
        clock_.wait_until(mutex_, changed_, sleeps_until_);
      }
      sleeps_until_ = absl::InfinitePast();
      continue;
    }
    mutex_.unlock();
    callback();
    callback = nullptr;
    mutex_.lock();
  }
  mutex_.unlock();
}

void TimerQueue::shutdown() {
  // Destroyed after the lock is released: tasks own objects of users.
  TimedTasks dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    std::swap(dropped, tasks_);
  }
  // A concurrent caller waits until the first one has joined the thread.
  std::call_once(joined_, [this] { thread_.join(); });
}

std::size_t TimerQueue::size() const {
  MutexLock lock(mutex_);
  return tasks_.size();
}

}  // namespace gradwire
