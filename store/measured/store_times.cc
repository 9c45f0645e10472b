#include "gradwire/store/measured/store_times.h"

#include <utility>

namespace gradwire::store {

uint64_t StoreTimes::begin(const char* operation, absl::Time now) {
  MutexLock lock(mutex_);
  open_.emplace(next_, Call{operation, now, absl::ZeroDuration()});
  return next_++;
}

void StoreTimes::end(uint64_t call, absl::Time now) {
  MutexLock lock(mutex_);
  const auto found = open_.find(call);
  if (found == open_.end()) return;
  Call ended = found->second;
  open_.erase(found);
  ended.took = now - ended.began;
  ended_.push_back(ended);
  if (ended_.size() > kKept) ended_.pop_front();
}

void StoreTimes::set_store(std::string description) {
  MutexLock lock(mutex_);
  store_ = std::move(description);
}

StoreTimes::View StoreTimes::view(absl::Time now) const {
  MutexLock lock(mutex_);
  View view;
  view.store = store_;
  absl::Duration all;
  for (const Call& call : ended_) {
    if (now - (call.began + call.took) > kRecent) continue;
    ++view.calls;
    all += call.took;
    if (call.took < view.slowest || call.took == absl::ZeroDuration()) continue;
    view.slowest = call.took;
    view.slowest_operation = call.operation;
  }
  if (view.calls > 0) view.mean = all / static_cast<int64_t>(view.calls);
  if (!open_.empty()) {
    view.open = now - open_.begin()->second.began;
    view.open_operation = open_.begin()->second.operation;
  }
  return view;
}

}  // namespace gradwire::store
