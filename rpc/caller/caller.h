#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/latency_histogram.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/caller/request_ids.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/link/agent_tables.h"

namespace gradwire::rpc {

class Peers;
class RRefService;

// The calls that one agent makes: sends them, repeats those that may be repeated, and completes each exactly
// once, with its answer or the reason why none will come. Thread-safe. Its arguments outlive it.
class Caller {
 public:
  Caller(AgentRuntime& runtime, Peers& peers, RRefService& rrefs);

  AgentRuntime& runtime() const { return runtime_; }
  RRefService& rrefs() const { return rrefs_; }
  const PendingCalls& pending() const { return pending_; }

  absl::StatusOr<std::shared_ptr<Peer>> find(const Destination& destination) const;
  // When a call that starts at `now` and may take `timeout` (none: the agent's rpc_timeout) must have ended;
  // no later than the call that the calling thread serves. Both times are on Clock::system().
  absl::Time deadline(const std::optional<absl::Duration>& timeout, absl::Time now) const;
  // A place for the call in the window of its peer. Waits if the window is full and the options say so.
  absl::StatusOr<FlowCredit> enter_window(PendingCall& call, uint64_t bytes);

  uint64_t next_id() { return pending_.next_id(); }
  // Sends an encoded request and keeps `call` (its peer, callee, times and completion) until the answer.
  // `borrow`: the caller leaves its tensors alone until then; else what has not left is copied here. `id`:
  // from next_id().
  void send(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers, bool borrow,
            PendingCalls::Taken call);
  // The same for a request that is sent again when its connection breaks before the answer.
  void send_repeatable(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                       PendingCalls::Taken call);
  // As Agent::call_service.
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors, const ServiceOptions& options);
  // Gives up: the call completes with `reason`, unless it has completed, and the callee is notified.
  void cancel(uint64_t id, absl::Status reason);

  // Events that concern calls under way.
  void answer(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers);
  void link_closed(const Worker& peer, const Link& link, const absl::Status& reason);
  void worker_lost(const Worker& peer, const absl::Status& reason);
  void end_all(const absl::Status& reason);

  uint64_t calls_made() const { return calls_made_.load(); }
  void count(AgentStatistics& statistics) const;
  void count(AgentTables& tables) const;

 private:
  // Peers::link_to, unless calls are refused here.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer) const;
  // From here on an answer finds the call, and its deadline ends it.
  void add_pending(uint64_t id, PendingCalls::Taken call);
  // Tells the callee that nobody waits for the call any more, and completes it.
  void retract(uint64_t id, PendingCalls::Taken call, absl::Status reason);
  void complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer);
  // Ends the calls whose time is up, and comes again for the next.
  void expire(absl::Time alarm);

  // Repeatable calls (caller_repeats.cc).

  // Sends the call once more. May connect, and so block.
  void attempt(uint64_t id);
  // An attempt has failed: another follows, or the call fails.
  void interrupted(uint64_t id, const absl::Status& reason);

  AgentRuntime& runtime_;
  Peers& peers_;
  RRefService& rrefs_;
  const FlowWindow::Bounds flow_bounds_;

  // Synchronised by themselves.
  PendingCalls pending_;
  RequestIds request_ids_;
  LatencyHistogram latencies_;
  std::atomic<uint64_t> calls_made_{0};
  std::atomic<uint64_t> calls_failed_{0};
  std::atomic<uint64_t> calls_repeated_{0};
  std::atomic<uint64_t> late_answers_{0};
};

}  // namespace gradwire::rpc
