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
  // A timer that was cancelled leaves the thread asleep until its time, which is soon enough for later ones.
  if (when < sleeps_until_) changed_.notify_one();
  return id;
}

bool TimerQueue::cancel(uint64_t id) {
  Callback dropped;  // Destroyed outside the lock.
  MutexLock lock(mutex_);
  dropped = tasks_.take(id);
  return dropped != nullptr;
}

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
  TimedTasks dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    std::swap(dropped, tasks_);
  }
  // Whoever comes second waits for the first to have joined.
  std::call_once(joined_, [this] { thread_.join(); });
}

std::size_t TimerQueue::size() const {
  MutexLock lock(mutex_);
  return tasks_.size();
}

}  // namespace gradwire
