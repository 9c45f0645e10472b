#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace gradwire {

// Tasks ordered by the time when they are due; tasks with the same time stay in the order in which they were
// added. This class neither runs nor destroys tasks, so that the caller can do both after it has released its
// lock. Not thread-safe.
class TimedTasks {
 public:
  using Task = absl::AnyInvocable<void()>;

  // Returns an id for take(). For InfiniteFuture it returns 0 and does not take `task`.
  uint64_t add(absl::Time when, Task&& task);
  // Removes and returns the task; returns an empty task if it was already removed.
  Task take(uint64_t id);
  // Removes and returns the first task if it is due at `now`; otherwise returns an empty task.
  Task take_due(absl::Time now);

  // The time when the first task is due; InfiniteFuture if there are no tasks.
  absl::Time next() const { return empty() ? absl::InfiniteFuture() : by_time_.begin()->first.first; }
  bool empty() const { return by_time_.empty(); }
  std::size_t size() const { return by_time_.size(); }

 private:
  using ByTime = std::map<std::pair<absl::Time, uint64_t>, Task>;

  Task take(ByTime::iterator entry);

  ByTime by_time_;
  absl::flat_hash_map<uint64_t, absl::Time> times_;
  uint64_t next_id_ = 1;
};

}  // namespace gradwire
