#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gradwire::rpc {

// Totals of an agent since it started.
struct AgentStatistics {
  uint64_t calls_made = 0;    // Sent, the framework's own messages that are answered included.
  uint64_t calls_failed = 0;  // Calls made that ended with an error.
  // Attempts beyond the first, of calls of idempotent functions.
  uint64_t calls_repeated = 0;
  uint64_t calls_served = 0;    // Made by any worker, itself included.
  uint64_t bytes_sent = 0;      // Over connections that are open or were.
  uint64_t bytes_received = 0;  // Likewise.
  // Median time from a call made to its answer.
  absl::Duration call_p50;
  absl::Duration call_p99;  // The 99th percentile of the same.
  // Answers that came after their call had ended, or twice.
  uint64_t late_answers = 0;
};

}  // namespace gradwire::rpc
