#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "gradwire/base/threads/executor.h"

namespace gradwire {

// A FIFO queue of tasks that also sums up their expected durations. Not thread-safe.
class TaskQueue {
 public:
  struct Queued {
    Executor::Task task;
    TaskCost* cost = nullptr;
  };

  void push(Queued queued) {
    if (queued.cost != nullptr) nanoseconds_ += queued.cost->nanoseconds();
    tasks_.push_back(std::move(queued));
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

}  // namespace gradwire
