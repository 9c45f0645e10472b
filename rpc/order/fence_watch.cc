#include "gradwire/rpc/order/fence_watch.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"

namespace gradwire::rpc {
namespace {

// A copy of some kilobytes takes about the first time, one of many megabytes some milliseconds.
constexpr absl::Duration kFirstPause = absl::Microseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(1);

// Whether the fence is reached. An exception of the device's library becomes the error of this fence alone.
absl::StatusOr<bool> ask(const StreamFence& fence) {
  try {
    return fence.reached();
  } catch (...) {
    return caught("asking a device whether it has reached a point of its stream");
  }
}

}  // namespace

void FenceWatch::watch(StreamFencePtr fence, Done done) {
  absl::Status stopped;
  {
    MutexLock lock(mutex_);
    stopped = stopped_;
    if (stopped.ok()) {
      pause_ = kFirstPause;
      // First what may throw: nothing polls an entry without a timer.
      if (!scheduled_) schedule_locked();
      entries_.push_back({std::move(fence), std::move(done)});
      waits_->fetch_add(1);
      return;
    }
  }
  done(stopped);
}

void FenceWatch::schedule_locked() {
  timers_.schedule(timers_.clock().now() + pause_, [this] { poll(); });
  scheduled_ = true;
}

// An exception makes the timer run again, so `scheduled_` stays set until nothing is left to poll. What has
// ended is handed over before the next poll is scheduled, which may throw.
void FenceWatch::poll() {
  std::vector<std::pair<Done, absl::Status>> ended;
  {
    MutexLock lock(mutex_);
    ended.reserve(entries_.size());
    std::erase_if(entries_, [&](Entry& entry) {
      const absl::StatusOr<bool> reached = ask(*entry.fence);
      if (reached.ok() && !*reached) return false;
      ended.emplace_back(std::move(entry.done), reached.status());
      return true;
    });
    pause_ = ended.empty() ? std::min(2 * pause_, kLongestPause) : kFirstPause;
  }
  for (auto& [done, status] : ended) {
    executor_->post_or_run([waits = waits_, done = std::move(done), status = std::move(status)]() mutable {
      run_contained("the end of a wait for a device", [&] { done(std::move(status)); });
      // It may own objects of the user, so it is destroyed here, without the lock.
      done = nullptr;
      waits->fetch_sub(1);
    });
  }
  MutexLock lock(mutex_);
  if (entries_.empty()) {
    scheduled_ = false;
  } else {
    schedule_locked();
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
    run_contained("the end of a wait for a device", [&] { entry.done(reason); });
    waits_->fetch_sub(1);
  }
}

}  // namespace gradwire::rpc
