#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"

namespace gradwire::collectives {

// A lock that its users get one at a time, in the order in which they took their tickets. A user must call
// take(), wait() or wait_until(), and leave(), for every ticket. If the lock is free, none of these locks the
// mutex. Thread-safe.
class TicketLock {
 public:
  // Takes the next ticket. Does not wait.
  uint64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Waits until it is this ticket's turn. Returns whether it had to wait for an earlier ticket.
  bool wait(uint64_t ticket) {
    if (serving_.load(std::memory_order_acquire) == ticket) return false;
    return wait_until(ticket, absl::InfiniteFuture());
  }

  // As wait(), until a deadline, a time of Clock::system(). Returns whether it is this ticket's turn. After
  // false the user must wait again.
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

  // Gives the turn to the next ticket. REQUIRES: it is this ticket's turn.
  void leave(uint64_t ticket) {
    // A waiter increments waiters_ and then reads serving_; this thread writes serving_ and then reads
    // waiters_. All four accesses are sequentially consistent, so either this thread sees the waiter and
    // notifies it, or the waiter sees the new number and does not wait.
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

// Leaves the lock at the end of the scope, also by an exception: the holders of later tickets wait for it.
// Waits for the turn before, if wait() was not called.
class TicketTurn {
 public:
  // Takes the next ticket.
  explicit TicketTurn(TicketLock& lock) : TicketTurn(lock, lock.take()) {}
  TicketTurn(TicketLock& lock, uint64_t ticket) : lock_(lock), ticket_(ticket) {}
  ~TicketTurn() {
    lock_.wait(ticket_);
    lock_.leave(ticket_);
  }
  TicketTurn(const TicketTurn&) = delete;
  TicketTurn& operator=(const TicketTurn&) = delete;

  uint64_t ticket() const { return ticket_; }
  // As TicketLock::wait().
  bool wait() { return lock_.wait(ticket_); }

 private:
  TicketLock& lock_;
  const uint64_t ticket_;
};

}  // namespace gradwire::collectives
