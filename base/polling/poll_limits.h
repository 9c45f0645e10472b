#pragma once

#include <atomic>
#include <cstdint>

namespace gradwire {

// How much the threads of one pool may poll in silences that are longer than a wake-up takes: a share of one
// core on average, and as long as the pool works. What was not used is saved, up to the share of one second.
// Times are nanoseconds of one monotonic clock. Thread-safe.
class PollBudget {
 public:
  // `share`: from 0 to 1. If it is 0, the budget stays empty.
  explicit PollBudget(double share) : share_(share) {}

  // Nanoseconds that may be polled now; not positive if none are left.
  int64_t left(int64_t now);
  // The pool worked for this long: calls that follow one another at short intervals are worth polling for.
  // A sleep between them would take more processor time, that of the wake-up.
  void earn(int64_t nanoseconds) {
    if (share_ > 0) left_.fetch_add(nanoseconds, std::memory_order_relaxed);
  }
  void spend(int64_t nanoseconds) { left_.fetch_sub(nanoseconds, std::memory_order_relaxed); }

 private:
  const double share_;
  std::atomic<int64_t> left_{0};
  // When the budget was filled last; 0: never.
  std::atomic<int64_t> filled_{0};
};

// Notices that another thread needs the core on which a thread polls.
//
// A thread that polls yields in between. If a yield takes long, another thread has computed on this core
// meanwhile. A thread that yields gets the core back only after a whole time slice of the other one, while a
// thread that wakes from sleep gets it at once. So on a busy core threads should not poll for a while; the
// time doubles while the core stays busy. Thread-safe.
class CoreContention {
 public:
  // A yield that takes longer has run a thread that computes for most of its time slice. Shorter ones are
  // common when more processes than cores work on one task: there the yields are what makes it advance.
  static constexpr int64_t kLongYield = 1'000'000;

  // A yield took this long, until `now`. The core is needed if that is at least `least`.
  void yielded(int64_t nanoseconds, int64_t now, int64_t least = kLongYield);
  // A thread that computed gave the core back in time: the next long yield counts as the first one.
  void returned() { length_.store(0, std::memory_order_relaxed); }
  bool is_high(int64_t now) const { return now < until_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> until_{0};
  std::atomic<int64_t> length_{0};
};

}  // namespace gradwire
