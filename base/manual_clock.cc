#include "gradwire/base/manual_clock.h"

#include <algorithm>

namespace gradwire {

absl::Time ManualClock::now() const {
  MutexLock lock(mutex_);
  return now_;
}

void ManualClock::wait_until(Mutex& mutex, CondVar& condition, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    if (deadline <= now_) return;
    waiters_.push_back({&mutex, &condition});
  }
  // advance() does not take the waiter's lock, so a notification can arrive between the push above and the
  // wait below and get lost. The short timeout bounds that delay.
  condition.wait_for(mutex, absl::Milliseconds(2));
  MutexLock lock(mutex_);
  auto found = std::find_if(waiters_.begin(), waiters_.end(),
                            [&condition](const Waiter& waiter) { return waiter.condition == &condition; });
  if (found != waiters_.end()) waiters_.erase(found);
}

void ManualClock::advance(absl::Duration step) {
  MutexLock lock(mutex_);
  now_ += step;
  for (const Waiter& waiter : waiters_) waiter.condition->notify_all();
}

}  // namespace gradwire
