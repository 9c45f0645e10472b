#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/core/options.h"

namespace gradwire::rpc {

class FlowWindow;

// Permission for one call to be in flight: a share of a FlowWindow. It is given back once, by give_back() or
// by the destructor. Empty by default. Movable; not thread-safe. The window must outlive it. Giving a credit
// back may run the callbacks of waiters that now fit, on the same thread.
class FlowCredit {
 public:
  FlowCredit() = default;
  FlowCredit(FlowCredit&& other) noexcept
      : window_(std::exchange(other.window_, nullptr)), charge_(other.charge_) {}
  FlowCredit& operator=(FlowCredit&& other) noexcept {
    if (this != &other) {
      give_back();
      window_ = std::exchange(other.window_, nullptr);
      charge_ = other.charge_;
    }
    return *this;
  }
  ~FlowCredit() { give_back(); }

  explicit operator bool() const { return window_ != nullptr; }
  inline void give_back();

 private:
  friend class FlowWindow;
  FlowCredit(FlowWindow* window, uint64_t charge) : window_(window), charge_(charge) {}
  FlowWindow* window_ = nullptr;
  uint64_t charge_ = 0;
};

// Bounds the number and the bytes of the calls that one worker has in flight to another. While there is room,
// entering and leaving cost one atomic operation each. Thread-safe. The window must outlive its credits, and
// must have no waiters when it is destroyed.
class FlowWindow {
 public:
  struct Bounds {
    Bounds() : Bounds(FlowOptions()) {}
    explicit Bounds(const FlowOptions& options);
    uint64_t calls;
    uint64_t bytes;
  };
  struct Usage {
    uint64_t calls = 0;
    uint64_t bytes = 0;
    bool awaited = false;
  };
  using Admitted = absl::AnyInvocable<void(FlowCredit)>;

  // Returns a credit for a call of `bytes`. The credit is empty if there is no room, or if other calls are
  // waiting for room.
  FlowCredit try_enter(uint64_t bytes, const Bounds& bounds) {
    uint64_t charge = 0;
    uint64_t word = word_.load(std::memory_order_relaxed);
    while ((word & kAwaited) == 0 && fits(word, bytes, bounds, charge)) {
      if (word_.compare_exchange_weak(word, word + charge, std::memory_order_acq_rel)) return {this, charge};
    }
    return {};
  }

  // Calls `admitted` with a credit when there is room and every earlier waiter has been admitted. If that is
  // so at once, the callback runs before wait() returns 0. Otherwise it runs on a thread that gives a credit
  // back, and wait() returns a number for cancel_wait().
  uint64_t wait(uint64_t bytes, const Bounds& bounds, Admitted admitted);
  // Stops waiting. Returns false if `admitted` has been called or is being called.
  bool cancel_wait(uint64_t waiter);

  Usage usage() const;
  // The calls that wait now, and those that had to wait since the start.
  struct Queue {
    std::size_t waiting = 0;
    uint64_t waited = 0;
  };
  Queue queue() const;

 private:
  friend class FlowCredit;
  // The state in one word, from the lowest bit: 42 bits of bytes, 21 bits of calls, and one bit that is set
  // while calls wait.
  static constexpr int kCallsShift = 42;
  static constexpr uint64_t kAwaited = uint64_t{1} << 63;

  struct Waiter {
    uint64_t number = 0;
    uint64_t bytes = 0;
    Bounds bounds;
    Admitted admitted;
    FlowCredit credit;  // Empty while the call waits.
  };
  using Waiters = std::list<Waiter>;

  static bool fits(uint64_t word, uint64_t bytes, const Bounds& bounds, uint64_t& charge) {
    const uint64_t calls = (word & ~kAwaited) >> kCallsShift;
    const uint64_t used = word & FlowOptions::kMostBytes;
    if (bytes > FlowOptions::kMostBytes) bytes = FlowOptions::kMostBytes;
    charge = (uint64_t{1} << kCallsShift) | bytes;
    // A call that is larger than the window is admitted when it is the only one.
    return calls == 0 || (calls < bounds.calls && used + bytes <= bounds.bytes);
  }
  void give_back(uint64_t charge) {
    if (word_.fetch_sub(charge, std::memory_order_acq_rel) & kAwaited) admit_waiters();
  }
  void admit_waiters();
  // Gives credits to the waiters at the front of the queue, in order, until one does not fit.
  // Calls back those that have their credits.
  static void admit(Waiters entered) noexcept;
  // Moves the calls that fit now out of the queue. Needs no memory.
  Waiters enter_waiters_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> word_{0};
  mutable Mutex mutex_;
  // The bit kAwaited of word_ is set while the queue is not empty. It is set and cleared with the lock held.
  Waiters waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

inline void FlowCredit::give_back() {
  if (FlowWindow* window = std::exchange(window_, nullptr)) window->give_back(charge_);
}

}  // namespace gradwire::rpc
