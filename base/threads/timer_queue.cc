#include "gradwire/base/threads/timer_queue.h"

#include <pthread.h>

namespace gradwire {

TimerQueue::TimerQueue(Clock& clock) : clock_(clock), thread_([this] { run(); }) {}

TimerQueue::~TimerQueue() { shutdown(); }

uint64_t TimerQueue::schedule(absl::Time when, Callback callback) {
  if (when == absl::InfiniteFuture()) return 0;
  MutexLock lock(mutex_);
  if (stopping_) return 0;
  const uint64_t id = next_id_++;
  by_time_.emplace(std::make_pair(when, id), std::move(callback));
  times_.emplace(id, when);
  // A timer that was cancelled leaves the thread asleep until its time, which is soon enough for later ones.
  if (when < sleeps_until_) changed_.notify_one();
  return id;
}

bool TimerQueue::cancel(uint64_t id) {
  Callback dropped;  // Destroyed outside the lock.
  MutexLock lock(mutex_);
  auto found = times_.find(id);
  if (found == times_.end()) return false;
  auto entry = by_time_.find({found->second, id});
  dropped = std::move(entry->second);
  by_time_.erase(entry);
  times_.erase(found);
  return true;
}

void TimerQueue::run() {
  pthread_setname_np(pthread_self(), "timers");
  mutex_.lock();
  while (!stopping_) {
    if (by_time_.empty()) {
      sleeps_until_ = absl::InfiniteFuture();
      changed_.wait(mutex_);
      sleeps_until_ = absl::InfinitePast();
      continue;
    }
    auto next = by_time_.begin();
    if (clock_.now() < next->first.first) {
      sleeps_until_ = next->first.first;
      clock_.wait_until(mutex_, changed_, sleeps_until_);
      sleeps_until_ = absl::InfinitePast();
      continue;
    }
    Callback callback = std::move(next->second);
    times_.erase(next->first.second);
    by_time_.erase(next);
    mutex_.unlock();
    callback();
    callback = nullptr;
    mutex_.lock();
  }
  mutex_.unlock();
}

void TimerQueue::shutdown() {
  std::map<std::pair<absl::Time, uint64_t>, Callback> dropped;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    dropped.swap(by_time_);
    times_.clear();
  }
  // Whoever comes second waits for the first to have joined.
  std::call_once(joined_, [this] { thread_.join(); });
}

std::size_t TimerQueue::size() const {
  MutexLock lock(mutex_);
  return by_time_.size();
}

}  // namespace gradwire
