#include "gradwire/base/threads/timer_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire {

// by_time_ is sorted by (time, id), and ids increase. So tasks with the same time run in the order in which
// they were added, and `times_` leads from an id to its entry.
uint64_t TimedTasks::add(absl::Time when, Task&& task) {
  if (when == absl::InfiniteFuture()) return 0;
  const uint64_t id = next_id_++;
  const auto entry = by_time_.emplace(std::make_pair(when, id), Entry{std::move(task)}).first;
  try {
    times_.emplace(id, when);
  } catch (...) {
    by_time_.erase(entry);
    throw;
  }
  return id;
}

TimedTasks::Task TimedTasks::take(uint64_t id) {
  const auto found = times_.find(id);
  if (found == times_.end()) return nullptr;
  const ByTime::node_type node = by_time_.extract({found->second, id});
  times_.erase(found);
  return node.empty() ? nullptr : std::move(node.mapped().task);
}

TimedTasks::Due TimedTasks::take_due(absl::Time now) {
  if (next() > now) return Due();
  return Due(by_time_.extract(by_time_.begin()));
}

void TimedTasks::ended(const Due& due) { times_.erase(due.node_.key().second); }

void TimedTasks::failed(Due& due, absl::Time now) {
  const auto found = times_.find(due.node_.key().second);
  if (found == times_.end()) return;
  constexpr int kMostDoublings = 7;
  const int failures = std::min(due.node_.mapped().failures++, kMostDoublings);
  found->second = now + std::min(absl::Milliseconds(10) * (1 << failures), absl::Seconds(1));
  due.node_.key().first = found->second;
  by_time_.insert(std::move(due.node_));
}

bool TimedTasks::Due::run(const char* what) noexcept { return run_contained(what, node_.mapped().task); }

TimerQueue::TimerQueue(Clock& clock)
    : clock_(clock), thread_(value_or_throw(start_thread("timers", [this] { run(); }))) {}

TimerQueue::~TimerQueue() {
  if (mark_.here()) {
    shutdown();
  } else {
    leak_after_fork(tasks_, thread_);
  }
}

uint64_t TimerQueue::schedule(absl::Time when, Callback callback) {
  if (!mark_.here()) return 0;
  MutexLock lock(mutex_);
  if (stopping_) return 0;
  const uint64_t id = tasks_.add(when, std::move(callback));
  // Cancelling a timer does not wake the thread. It may wake at the time of a cancelled timer, which does not
  // delay later ones.
  if (when < sleeps_until_) changed_.notify_one();
  return id;
}

bool TimerQueue::cancel(uint64_t id) {
  if (!mark_.here()) return false;
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
  mutex_.lock();
  while (!stopping_) {
    TimedTasks::Due due = tasks_.take_due(clock_.now());
    if (!due) {
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
    run_due(due);
    mutex_.lock();
  }
  mutex_.unlock();
}

void TimerQueue::run_due(TimedTasks::Due& due) {
  const DutyScope duty;
  const bool ran = due.run("a timer");
  if (!mark_.here()) end_forked_child("the thread of the timers");
  {
    MutexLock lock(mutex_);
    if (ran) {
      tasks_.ended(due);
    } else {
      tasks_.failed(due, clock_.now());
    }
  }
  due = TimedTasks::Due();
}

void TimerQueue::shutdown() {
  if (!mark_.here()) return;
  assert(!on_duty());
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
  if (!mark_.here()) return 0;
  MutexLock lock(mutex_);
  return tasks_.size();
}

}  // namespace gradwire
