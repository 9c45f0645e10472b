#include "gradwire/base/polling/answer_wait.h"

#include <algorithm>
#include <utility>

#include "gradwire/base/polling/pause_tuner.h"

namespace gradwire {
namespace {

// The shortest extra time that is tried.
constexpr int64_t kMinExtra = 60'000;

}  // namespace

void AnswerTimes::learn(bool answered) {
  const int64_t extra = extra_.load(std::memory_order_relaxed);
  extra_.store(answered ? std::min(2 * extra, kMaxExtra) : std::max(extra / 2, kMinExtra),
               std::memory_order_relaxed);
}

AnswerWait::AnswerWait(const WaitPolicy& policy, const AnswerWaitLimits& limits, Now now)
    : free_(bounded_nanoseconds(policy.pause) + bounded_nanoseconds(policy.yield)),
      pause_(std::max(bounded_nanoseconds(policy.pause), std::min(limits.pauses.nanoseconds(), free_))),
      yield_(bounded_nanoseconds(policy.yield)),
      limits_(limits),
      now_(now) {}

Rest AnswerWait::rest() {
  if (pause_ == 0 && yield_ == 0) return Rest::kSleep;
  if (begin_ == 0) begin_ = now_();
  if (last_yield_ == 0 && ++polls_ % kPausesPerClock != 0) return Rest::kPause;
  const int64_t now = now_();
  if (last_yield_ == 0 && now - begin_ < pause_) return Rest::kPause;
  limits_.contention.yielded(std::exchange(yield_took_, 0), now, long_yield());
  last_yield_ = now;
  if (limits_.contention.is_high(now)) return Rest::kSleep;
  const int64_t free_until = begin_ + free_;
  if (now < free_until) return Rest::kYield;
  if (extra_until_ == 0) {
    const int64_t extra = limits_.times.extra();
    if (yield_ == 0 || limits_.budget.left(now) < extra) return Rest::kSleep;
    extra_until_ = free_until + extra;
  }
  if (now < extra_until_) return Rest::kYield;
  return Rest::kSleep;
}

void AnswerWait::yielded() { yield_took_ = now_() - last_yield_; }

int64_t AnswerWait::long_yield() const {
  return limits_.pauses.proven() ? PauseTuner::kLongestTurn : CoreContention::kLongYield;
}

void AnswerWait::renew() {
  if (extra_until_ != 0) charge(now_());
  begin_ = 0;
  polls_ = 0;
  last_yield_ = 0;
  yield_took_ = 0;
  extra_until_ = 0;
}

void AnswerWait::end(bool answered) {
  if (extra_until_ != 0) charge(now_());
  if (used_extra_) limits_.times.learn(answered);
  if (begin_ == 0) return;
  const int64_t waited = last_yield_ == 0 ? 0 : last_yield_ + yield_took_ - begin_;
  const bool ran_callee = yield_took_ > PauseTuner::kShortestTurn && yield_took_ < long_yield();
  if (limits_.pauses.proven()) limits_.contention.yielded(yield_took_, begin_ + waited, long_yield());
  limits_.pauses.learn(answered ? waited : PauseTuner::kLong, ran_callee);
}

void AnswerWait::charge(int64_t now) {
  used_extra_ = true;
  limits_.budget.spend(std::max<int64_t>(0, now - begin_ - free_));
}

}  // namespace gradwire
