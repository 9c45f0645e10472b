#include "gradwire/collectives/nccl/watchdog.h"

#include <algorithm>
#include <utility>

namespace gradwire::collectives::nccl {

Watchdog::Watchdog(Clock& clock) : clock_(clock), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(std::shared_ptr<GroupWatch> group) {
  {
    MutexLock lock(mutex_);
    groups_.push_back(std::move(group));
  }
  wake();
}

void Watchdog::forget(const GroupWatch* group) {
  std::shared_ptr<GroupWatch> last;
  MutexLock lock(mutex_);
  const auto found = std::find_if(groups_.begin(), groups_.end(),
                                  [group](const auto& entry) { return entry.get() == group; });
  if (found != groups_.end()) {
    last = std::move(*found);
    groups_.erase(found);
  }
  if (std::this_thread::get_id() == thread_.get_id()) return;
  while (looking_at_ == group) changed_.wait(mutex_);
}

void Watchdog::wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void Watchdog::run() {
  MutexLock lock(mutex_);
  while (!stop_) {
    woken_ = false;
    absl::Duration next = absl::Hours(1);
    std::vector<const GroupWatch*> round;
    for (const auto& group : groups_) round.push_back(group.get());
    for (const GroupWatch* const one : round) {
      // It may have been taken out meanwhile.
      const auto found = std::find_if(groups_.begin(), groups_.end(),
                                      [one](const auto& entry) { return entry.get() == one; });
      if (stop_ || found == groups_.end()) continue;
      std::shared_ptr<GroupWatch> group = *found;
      looking_at_ = one;
      mutex_.unlock();
      next = std::min(next, group->look());
      group.reset();
      mutex_.lock();
      looking_at_ = nullptr;
      changed_.notify_all();
    }
    const absl::Time deadline = clock_.now() + next;
    while (!stop_ && !woken_ && clock_.now() < deadline) clock_.wait_until(mutex_, changed_, deadline);
  }
}

}  // namespace gradwire::collectives::nccl
