#include "gradwire/rpc/link/flow_window.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/log/contained.h"

// The fast path (try_enter, give_back) uses only `word_`. Calls that find no room wait in a queue, under the
// lock. The bit kAwaited of `word_` connects the two: while it is set, try_enter() fails, so that no call
// overtakes the queue, and every give_back() calls admit_waiters(). A wake-up cannot be lost, because wait()
// sets the bit with the compare-exchange that has found no room: a credit that was given back before it is
// part of the word that was checked, and a credit that is given back later sees the bit.
namespace gradwire::rpc {

FlowWindow::Bounds::Bounds(const FlowOptions& options)
    : calls(options.max_calls == 0 ? FlowOptions::kMostCalls
                                   : std::min(options.max_calls, FlowOptions::kMostCalls)),
      bytes(options.max_bytes == 0 ? FlowOptions::kMostBytes
                                   : std::min(options.max_bytes, FlowOptions::kMostBytes)) {}

uint64_t FlowWindow::wait(uint64_t bytes, const Bounds& bounds, Admitted admitted) {
  FlowCredit credit;
  {
    MutexLock lock(mutex_);
    uint64_t charge = 0;
    uint64_t word = word_.load(std::memory_order_relaxed);
    while (true) {
      const bool enters = waiters_.empty() && fits(word, bytes, bounds, charge);
      // One step either takes the room or sets kAwaited. A thread that gives a credit back after that sees
      // the bit and calls admit_waiters(), which waits for this lock.
      if (!word_.compare_exchange_weak(word, enters ? word + charge : word | kAwaited,
                                       std::memory_order_acq_rel)) {
        continue;
      }
      if (enters) {
        credit = {this, charge};
        break;
      }
      waiters_.push_back({next_waiter_, bytes, bounds, std::move(admitted), {}});
      return next_waiter_++;
    }
  }
  // Without the lock: the callback may start a call, which enters this window.
  admitted(std::move(credit));
  return 0;
}

bool FlowWindow::cancel_wait(uint64_t waiter) {
  Waiters entered;
  Admitted dropped;
  {
    MutexLock lock(mutex_);
    auto found = std::find_if(waiters_.begin(), waiters_.end(),
                              [&](const Waiter& other) { return other.number == waiter; });
    if (found == waiters_.end()) return false;
    // The callback owns objects of the waiting call. It is destroyed without the lock.
    dropped = std::move(found->admitted);
    waiters_.erase(found);
    // The calls behind it may be smaller, and fit now.
    entered = enter_waiters_locked();
  }
  admit(std::move(entered));
  return true;
}

void FlowWindow::admit(Waiters entered) noexcept {
  for (Waiter& waiter : entered)
    run_contained("a call that waited for room", [&] { waiter.admitted(std::move(waiter.credit)); });
}

void FlowWindow::admit_waiters() {
  Waiters entered;
  {
    MutexLock lock(mutex_);
    entered = enter_waiters_locked();
  }
  admit(std::move(entered));
}

FlowWindow::Waiters FlowWindow::enter_waiters_locked() {
  Waiters entered;
  uint64_t word = word_.load(std::memory_order_relaxed);
  while (!waiters_.empty()) {
    Waiter& first = waiters_.front();
    uint64_t charge = 0;
    if (!fits(word, first.bytes, first.bounds, charge)) {
      // If another thread gives a credit back at this moment, it sees kAwaited and calls admit_waiters()
      // itself.
      return entered;
    }
    if (!word_.compare_exchange_weak(word, word + charge, std::memory_order_acq_rel)) continue;
    word += charge;
    first.credit = FlowCredit(this, charge);
    entered.splice(entered.end(), waiters_, waiters_.begin());
  }
  // The queue is empty and the lock is held, so no wait() can have set the bit after the check. From here on
  // try_enter() succeeds again.
  word_.fetch_and(~kAwaited, std::memory_order_acq_rel);
  return entered;
}

FlowWindow::Usage FlowWindow::usage() const {
  const uint64_t word = word_.load(std::memory_order_acquire);
  return {(word & ~kAwaited) >> kCallsShift, word & FlowOptions::kMostBytes, (word & kAwaited) != 0};
}

FlowWindow::Queue FlowWindow::queue() const {
  MutexLock lock(mutex_);
  return {waiters_.size(), next_waiter_ - 1};
}

}  // namespace gradwire::rpc
