#include "gradwire/base/threads/timed_tasks.h"

namespace gradwire {

// by_time_ is sorted by (time, id), and ids increase. So tasks with the same time run in the order in which
// they were added, and `times_` leads from an id to its entry.
uint64_t TimedTasks::add(absl::Time when, Task&& task) {
  if (when == absl::InfiniteFuture()) return 0;
  const uint64_t id = next_id_++;
  by_time_.emplace(std::make_pair(when, id), std::move(task));
  times_.emplace(id, when);
  return id;
}

TimedTasks::Task TimedTasks::take(uint64_t id) {
  const auto found = times_.find(id);
  if (found == times_.end()) return nullptr;
  return take(by_time_.find({found->second, id}));
}

TimedTasks::Task TimedTasks::take_due(absl::Time now) {
  return next() > now ? nullptr : take(by_time_.begin());
}

TimedTasks::Task TimedTasks::take(ByTime::iterator entry) {
  Task task = std::move(entry->second);
  times_.erase(entry->first.second);
  by_time_.erase(entry);
  return task;
}

}  // namespace gradwire
