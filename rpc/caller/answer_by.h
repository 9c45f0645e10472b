#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace gradwire::rpc {

// When a callee that still waits for something gives up and answers with the reason. At the deadline itself
// the caller's own timer is always first, and knows no reason. So the answer leaves earlier, by a twentieth
// of the time that is left: at least 50 ms, for the way back, and at most half of the time.
inline absl::Time answer_by(absl::Time now, absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return deadline;
  const absl::Duration left = std::max(deadline - now, absl::ZeroDuration());
  return deadline - std::min(std::max(left / 20, absl::Milliseconds(50)), left / 2);
}

}  // namespace gradwire::rpc
