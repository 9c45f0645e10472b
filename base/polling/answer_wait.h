#pragma once

#include <atomic>
#include <cstdint>

#include "gradwire/base/clock.h"
#include "gradwire/base/polling/pause_tuner.h"
#include "gradwire/base/polling/poll_limits.h"
#include "gradwire/base/polling/poll_pace.h"
#include "gradwire/base/polling/spin_wait.h"

namespace gradwire {

// Learns for how long it is worth to poll for an answer. If the last long wait ended without the answer, the
// next one is shorter. Thread-safe.
class AnswerTimes {
 public:
  // The longest time that a thread polls for an answer, beyond WaitPolicy::yield.
  static constexpr int64_t kMaxExtra = 500'000;

  int64_t extra() const { return extra_.load(std::memory_order_relaxed); }
  // A wait polled for the extra time, too. `answered`: whether the answer arrived meanwhile.
  void learn(bool answered);

 private:
  std::atomic<int64_t> extra_{kMaxExtra};
};

// The limits that all waits for answers of one pool share.
struct AnswerWaitLimits {
  PollBudget& budget;
  CoreContention& contention;
  PauseTuner& pauses;
  AnswerTimes& times;
};

// One wait of a thread for an answer that another process computes: pauses, then yields and polls, then the
// thread sleeps. The sleep is expensive: another thread has to find the answer and wake this one. So the
// thread polls beyond WaitPolicy::yield, as long as the budget allows it, if answers arrived in that time
// before. Not thread-safe.
class AnswerWait {
 public:
  using Now = PollPace::Now;

  AnswerWait(const WaitPolicy& policy, const AnswerWaitLimits& limits, Now now = &monotonic_nanoseconds);

  // A poll found nothing: returns how to rest before the next one. kYield: call yielded() after the yield.
  Rest rest();
  void yielded();
  // A poll found something: the wait begins anew.
  void renew();
  // The wait ends. `answered`: the answer has arrived.
  void end(bool answered);

 private:
  // Charges the time since the begin that exceeds WaitPolicy::yield.
  void charge(int64_t now);
  // A yield that takes longer has run a thread other than the callee: one that computes.
  int64_t long_yield() const;

  // How long the thread polls without charge, and pauses in that time.
  const int64_t free_;
  const int64_t pause_;
  const int64_t yield_;
  const AnswerWaitLimits limits_;
  const Now now_;

  int64_t begin_ = 0;
  uint32_t polls_ = 0;
  // The begin of the last yield; 0: none yet. And how long it took, until the next rest.
  int64_t last_yield_ = 0;
  int64_t yield_took_ = 0;
  // The end of polling, set when the time for yields is over; 0 before.
  int64_t extra_until_ = 0;
  bool used_extra_ = false;
};

}  // namespace gradwire
