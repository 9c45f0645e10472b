#include "gradwire/base/polling/pool_polling.h"

#include <algorithm>

#include "gradwire/base/clock.h"

namespace gradwire {

PoolPolling::PoolPolling(const WaitPolicy& policy)
    : policy_(policy), budget_(policy.share), leader_(policy, budget_, contention_) {}

AnswerWait PoolPolling::wait_for_answer(absl::Time deadline) {
  WaitPolicy policy = policy_;
  if (deadline != absl::InfiniteFuture()) {
    const absl::Duration left = deadline - Clock::system().now();
    policy.pause = std::min(policy.pause, left);
    policy.yield = std::min(policy.yield, left);
  }
  return AnswerWait(policy, {budget_, contention_, answer_pauses_, answer_times_});
}

}  // namespace gradwire
