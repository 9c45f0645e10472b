#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace gradwire {

// Tasks and the times when they are due; those for the same time in the order in which they were added. It
// neither runs nor destroys any: so a lock can be released before. Not thread-safe.
class TimedTasks {
 public:
  using Task = absl::AnyInvocable<void()>;

  // Returns an id for take(), or 0 for InfiniteFuture, and then leaves `task` alone.
  uint64_t add(absl::Time when, Task&& task);
  // Takes the task out; empty if it is not here any more.
  Task take(uint64_t id);
  // Takes the first task out if it is due at `now`; empty otherwise.
  Task take_due(absl::Time now);

  // When the first task is due; InfiniteFuture while there is none.
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
