#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "gradwire/rpc/core/call_context.h"

namespace gradwire::rpc {

// The time at which a callee that is still waiting for something gives up and answers with the reason. If it
// waited until the deadline itself, the caller's own timer would always be first, and its error has no
// reason. So the answer is sent earlier, by a twentieth of the remaining time. That margin is at least 50 ms,
// for the way back, and at most half of the remaining time.
inline absl::Time answer_by(absl::Time now, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return deadline;
  const absl::Duration left = std::max(deadline - now, absl::ZeroDuration());
  return deadline - std::min(std::max(left / 20, absl::Milliseconds(50)), left / 2);
}

// The deadline of a call that is made at `now` and may take `timeout`. `serving`: the call that the calling
// thread serves, or nullptr; the result is never later than its deadline. All times are on Clock::system().
inline absl::Time call_deadline(absl::Duration timeout, absl::Time now, const CallContext* serving) {
  return serving == nullptr ? now + timeout : std::min(now + timeout, serving->deadline().on_system_clock());
}

}  // namespace gradwire::rpc
