#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/options.h"

namespace gradwire::rpc {

class FlowWindow;

// A place in a window, given back once: when the credit is destroyed, or before. Empty by default. Movable;
// not thread-safe. The window outlives it. A waiter for the room is called inside the call that gives it
// back.
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

// Counts the calls that one worker has under way to another, and their bytes, against bounds. While there is
// room, entering and leaving cost one atomic operation each. Thread-safe. Outlives its credits; nobody waits
// any more when it is destroyed.
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

  // A place for a call of this size; an empty credit without room, or when others wait for it.
  FlowCredit try_enter(uint64_t bytes, const Bounds& bounds) {
    uint64_t charge = 0;
    uint64_t word = word_.load(std::memory_order_relaxed);
    while ((word & kAwaited) == 0 && fits(word, bytes, bounds, charge)) {
      if (word_.compare_exchange_weak(word, word + charge, std::memory_order_acq_rel)) return {this, charge};
    }
    return {};
  }

  // Calls `admitted` when there is room and those who came before have been admitted: at once (then it
  // returns 0), or on a thread that gives a place back. Returns a number for leave().
  uint64_t wait(uint64_t bytes, const Bounds& bounds, Admitted admitted);
  // Stops waiting. False: `admitted` has been called, or is being called.
  bool leave(uint64_t waiter);

  Usage usage() const;

 private:
  friend class FlowCredit;
  // One word has it all: bytes, above them calls, above them whether somebody waits.
  static constexpr int kCallsShift = 42;
  static constexpr uint64_t kAwaited = uint64_t{1} << 63;

  struct Waiter {
    uint64_t number = 0;
    uint64_t bytes = 0;
    Bounds bounds;
    Admitted admitted;
  };
  using Entered = std::vector<std::pair<Admitted, FlowCredit>>;

  static bool fits(uint64_t word, uint64_t bytes, const Bounds& bounds, uint64_t& charge) {
    const uint64_t calls = (word & ~kAwaited) >> kCallsShift;
    const uint64_t used = word & FlowOptions::kMostBytes;
    if (bytes > FlowOptions::kMostBytes) bytes = FlowOptions::kMostBytes;
    charge = (uint64_t{1} << kCallsShift) | bytes;
    return calls == 0 || (calls < bounds.calls && used + bytes <= bounds.bytes);
  }
  void give_back(uint64_t charge) {
    if (word_.fetch_sub(charge, std::memory_order_acq_rel) & kAwaited) admit_waiters();
  }
  void admit_waiters();
  // Lets in from the front whoever fits.
  Entered enter_waiters_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<uint64_t> word_{0};
  Mutex mutex_;
  // kAwaited is set while there are any: set and cleared under the lock.
  std::deque<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

inline void FlowCredit::give_back() {
  if (FlowWindow* window = std::exchange(window_, nullptr)) window->give_back(charge_);
}

}  // namespace gradwire::rpc
