#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Counters of an agent since it started.
struct AgentStatistics {
  uint64_t calls_made = 0;    // Calls sent, including the framework's own messages that are answered.
  uint64_t calls_failed = 0;  // Calls sent that ended with an error.
  // Retries of calls of idempotent functions.
  uint64_t calls_repeated = 0;
  uint64_t calls_served = 0;  // Calls served for other workers and for this one.
  // Calls and messages of other workers that the policy of this worker has denied (docs/security.md).
  uint64_t calls_denied = 0;
  // Calls, messages and references of other workers that were refused by a limit (CallerLimits).
  uint64_t calls_over_limit = 0;
  uint64_t bytes_sent = 0;      // Bytes sent over all connections, open or closed.
  uint64_t bytes_received = 0;  // Bytes received over all connections, open or closed.
  // Median time from a call to its answer.
  absl::Duration call_p50;
  absl::Duration call_p99;  // 99th percentile of this time.
  // Answers that arrived twice, or after their call had ended.
  uint64_t late_answers = 0;
};

}  // namespace gradwire::rpc
