#include "gradwire/rpc/link/flow_window.h"

#include <algorithm>

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
      // Whoever gives a place back from here on sees that it is awaited.
      if (!word_.compare_exchange_weak(word, enters ? word + charge : word | kAwaited,
                                       std::memory_order_acq_rel)) {
        continue;
      }
      if (enters) {
        credit = {this, charge};
        break;
      }
      waiters_.push_back({next_waiter_, bytes, bounds, std::move(admitted)});
      return next_waiter_++;
    }
  }
  admitted(std::move(credit));
  return 0;
}

bool FlowWindow::leave(uint64_t waiter) {
  Entered entered;
  Admitted dropped;
  {
    MutexLock lock(mutex_);
    auto found = std::find_if(waiters_.begin(), waiters_.end(),
                              [&](const Waiter& other) { return other.number == waiter; });
    if (found == waiters_.end()) return false;
    dropped = std::move(found->admitted);
    waiters_.erase(found);
    // Those behind it may be smaller.
    entered = enter_waiters_locked();
  }
  for (auto& [admitted, credit] : entered) admitted(std::move(credit));
  return true;
}

void FlowWindow::admit_waiters() {
  Entered entered;
  {
    MutexLock lock(mutex_);
    entered = enter_waiters_locked();
  }
  for (auto& [admitted, credit] : entered) admitted(std::move(credit));
}

FlowWindow::Entered FlowWindow::enter_waiters_locked() {
  Entered entered;
  uint64_t word = word_.load(std::memory_order_relaxed);
  while (!waiters_.empty()) {
    Waiter& first = waiters_.front();
    uint64_t charge = 0;
    if (!fits(word, first.bytes, first.bounds, charge)) {
      // Another thread may be giving a place back; it will come here too.
      return entered;
    }
    if (!word_.compare_exchange_weak(word, word + charge, std::memory_order_acq_rel)) continue;
    word += charge;
    entered.emplace_back(std::move(first.admitted), FlowCredit(this, charge));
    waiters_.pop_front();
  }
  word_.fetch_and(~kAwaited, std::memory_order_acq_rel);
  return entered;
}

FlowWindow::Usage FlowWindow::usage() const {
  const uint64_t word = word_.load(std::memory_order_acquire);
  return {(word & ~kAwaited) >> kCallsShift, word & FlowOptions::kMostBytes, (word & kAwaited) != 0};
}

}  // namespace gradwire::rpc
