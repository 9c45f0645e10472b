#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives {

// Lets one through at a time, in the order in which they asked. Every ticket taken must be waited for and
// given back. With nobody before, that takes no lock. Thread-safe.
class TicketLock {
 public:
  uint64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Whether somebody was before.
  bool wait(uint64_t ticket) {
    if (serving_.load(std::memory_order_acquire) == ticket) return false;
    return wait_until(ticket, absl::InfiniteFuture());
  }

  // False when the deadline, a time of Clock::system(), came first: the ticket must still be waited for.
  bool wait_until(uint64_t ticket, absl::Time deadline) {
    if (serving_.load(std::memory_order_acquire) == ticket) return true;
    MutexLock lock(mutex_);
    waiters_.fetch_add(1);
    bool mine = true;
    while (serving_.load() != ticket) {
      const absl::Duration left =
          deadline == absl::InfiniteFuture() ? absl::InfiniteDuration() : deadline - Clock::system().now();
      if (left <= absl::ZeroDuration()) {
        mine = false;
        break;
      }
      served_.wait_for(mutex_, left);
    }
    waiters_.fetch_sub(1);
    return mine;
  }

  // The next one's turn. REQUIRES: it was this ticket's.
  void leave(uint64_t ticket) {
    // Sequentially consistent with waiters_: either the waiter is seen here, or it sees the new number.
    serving_.store(ticket + 1);
    if (waiters_.load() == 0) return;
    MutexLock lock(mutex_);
    served_.notify_all();
  }

 private:
  std::atomic<uint64_t> next_{0};
  std::atomic<uint64_t> serving_{0};
  std::atomic<int> waiters_{0};
  Mutex mutex_;
  CondVar served_;
};

}  // namespace gradwire::collectives
