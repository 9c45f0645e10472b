#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/latency_histogram.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/caller/request_ids.h"

namespace gradwire::rpc {

class Peers;
class RRefService;

// Completes the calls of one agent: decodes the answer or finds the reason of the failure, gives back what
// the call has held, and passes the result to the caller. Thread-safe. Its arguments must outlive it.
class CallCompletion {
 public:
  CallCompletion(AgentRuntime& runtime, Peers& peers, RRefService& rrefs, PendingCalls& pending,
                 RequestIds& request_ids);

  // `call` must have been taken out of the table of pending calls, so that it completes once.
  void complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer);
  // Completes a call whose message could not be sent, or whose link has ended. Its error is the reason why
  // this agent or the callee's worker has ended, or else `failure`.
  void fail(PendingCalls::Taken call, absl::Status failure);
  // OK, or the reason why no call can reach the worker any more.
  absl::Status may_reach(const Worker& worker) const;

  // Adds the failed calls, and the latencies of the others.
  void count(AgentStatistics& statistics) const;

 private:
  AgentRuntime& runtime_;
  Peers& peers_;
  RRefService& rrefs_;
  PendingCalls& pending_;
  RequestIds& request_ids_;

  LatencyHistogram latencies_;
  std::atomic<uint64_t> calls_failed_{0};
};

}  // namespace gradwire::rpc
