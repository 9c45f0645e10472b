#include "gradwire/collectives/nccl/watchdog.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::collectives::nccl {

Watchdog::Watchdog(Clock& clock)
    : clock_(clock), thread_(value_or_throw(start_thread("nccl-watch", [this] { run(); }))) {}

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

// `last` is declared before the lock, so the group is destroyed after the lock has been released. A poll of
// this group may be in progress: wait for its end, because the owner destroys what poll() uses. On the thread
// itself, inside poll(), that wait would never end.
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
  while (polled_ == group) changed_.wait(mutex_);
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
    // Cleared before the round: a wake() during the round starts another one.
    woken_ = false;
    absl::Duration next = absl::Hours(1);
    // groups_ may change while a group is polled without the lock. So the round has addresses, and each is
    // searched again before it is used.
    std::vector<const GroupWatch*> round;
    for (const auto& group : groups_) round.push_back(group.get());
    for (const GroupWatch* const one : round) {
      // forget() may have removed the group in the meantime.
      const auto found = std::find_if(groups_.begin(), groups_.end(),
                                      [one](const auto& entry) { return entry.get() == one; });
      if (stop_ || found == groups_.end()) continue;
      std::shared_ptr<GroupWatch> group = *found;
      polled_ = one;
      mutex_.unlock();
      next = std::min(next, group->poll());
      // Without the lock: this may be the last reference. polled_ is cleared afterwards, so forget() returns
      // only when the reference is gone.
      group.reset();
      mutex_.lock();
      polled_ = nullptr;
      changed_.notify_all();
    }
    const absl::Time deadline = clock_.now() + next;
    while (!stop_ && !woken_ && clock_.now() < deadline) clock_.wait_until(mutex_, changed_, deadline);
  }
}

}  // namespace gradwire::collectives::nccl
