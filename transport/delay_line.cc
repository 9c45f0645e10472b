#include "gradwire/transport/delay_line.h"

#include <utility>

#include "absl/cleanup/cleanup.h"

namespace gradwire::transport {

void DelayLine::add(absl::Duration delay, Action action) {
  {
    MutexLock lock(mutex_);
    items_.push_back({timers_.clock().now() + delay, std::move(action)});
  }
  run_due();
}

bool DelayLine::idle() {
  MutexLock lock(mutex_);
  return items_.empty() && !running_;
}

void DelayLine::make_all_due() {
  MutexLock lock(mutex_);
  for (Item& item : items_) item.when = absl::InfinitePast();
}

void DelayLine::discard() {
  std::deque<Item> dropped;
  MutexLock lock(mutex_);
  dropped.swap(items_);
}

// Keeps the actions in order although several threads may call this. Only one of them runs actions at a
// time (`running_`); the others return, because the running one checks the queue again after each action.
// An action that is not due yet also holds back those behind it. An action runs and is destroyed without
// the lock.
void DelayLine::run_due() {
  while (true) {
    Item item;
    {
      MutexLock lock(mutex_);
      if (running_ || items_.empty()) return;
      if (items_.front().when > timers_.clock().now()) {
        // A superfluous timer is harmless; a missing one would delay the action indefinitely.
        timers_.schedule(items_.front().when, [self = shared_from_this()] { self->run_due(); });
        return;
      }
      item = std::move(items_.front());
      items_.pop_front();
      running_ = true;
    }
    // An action that throws is logged by the timer, and must not hold back those behind it.
    const absl::Cleanup ended = [this] {
      MutexLock lock(mutex_);
      running_ = false;
    };
    item.action();
    item.action = nullptr;
  }
}

}  // namespace gradwire::transport
