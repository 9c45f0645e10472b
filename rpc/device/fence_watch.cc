#include "gradwire/rpc/device/fence_watch.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"

namespace gradwire::rpc {
namespace {

// A copy of some kilobytes takes about the first time, one of many megabytes some milliseconds.
constexpr absl::Duration kFirstPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

}  // namespace

void FenceWatch::watch(StreamFencePtr fence, Done done) {
  absl::Status stopped;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    if (stopped.ok()) {
      waits_->fetch_add(1);
      entries_.push_back({std::move(fence), std::move(done)});
      pause_ = kFirstPause;
      schedule_locked();
      return;
    }
  }
  done(stopped);
}

void FenceWatch::schedule_locked() {
  if (std::exchange(scheduled_, true)) return;
  timers_.schedule(timers_.clock().now() + pause_, [this] { poll(); });
}

void FenceWatch::poll() {
  std::vector<std::pair<Done, absl::Status>> ended;
  {
    MutexLock lock(mutex_);
    scheduled_ = false;
    std::erase_if(entries_, [&](Entry& entry) {
      const absl::StatusOr<bool> reached = entry.fence->reached();
      if (reached.ok() && !*reached) return false;
      ended.emplace_back(std::move(entry.done), reached.status());
      return true;
    });
    pause_ = ended.empty() ? std::min(2 * pause_, kLongestPause) : kFirstPause;
    if (!entries_.empty()) schedule_locked();
  }
  for (auto& [done, status] : ended) {
    Executor::Task task = [waits = waits_, done = std::move(done), status = std::move(status)]() mutable {
      done(std::move(status));
      // It may own objects of the user, so it is destroyed here, without the lock.
      done = nullptr;
      waits->fetch_sub(1);
    };
    if (!executor_->post_clean(task)) task();
  }
}

void FenceWatch::stop(const absl::Status& reason) {
  std::vector<Entry> entries;
  {
    MutexLock lock(mutex_);
    if (!stopped_.ok()) return;
    stopped_ = reason;
    entries.swap(entries_);
  }
  for (Entry& entry : entries) {
    entry.done(reason);
    waits_->fetch_sub(1);
  }
}

}  // namespace gradwire::rpc
