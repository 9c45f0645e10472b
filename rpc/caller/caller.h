#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/latency_histogram.h"
#include "gradwire/rpc/caller/copied/copied_calls.h"
#include "gradwire/rpc/caller/pending_calls.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/runtime/runtime.h"

namespace gradwire::rpc {

class Peers;
class RRefService;

// Makes the calls of one agent: sends them, repeats those that may be repeated, and completes each call
// exactly once, with its answer or with the reason why no answer will arrive. Thread-safe. Its arguments must
// outlive it.
class Caller {
 public:
  Caller(AgentRuntime& runtime, Peers& peers, RRefService& rrefs);

  AgentRuntime& runtime() const { return runtime_; }
  RRefService& rrefs() const { return rrefs_; }
  PendingCalls& pending() { return pending_; }

  absl::StatusOr<std::shared_ptr<Peer>> find(const Destination& destination) const;
  // OK, or the reason why no call can reach the worker any more.
  absl::Status may_reach(const Worker& worker) const;

  uint64_t next_id() { return pending_.next_id(); }
  // Sends an encoded request and keeps `call` (its peer, callee, times and completion) until the answer
  // arrives. `borrow`: the caller does not change its tensors until then. Otherwise buffers that have not
  // been sent yet are copied before this returns. `id` must come from next_id(). An exception means that the
  // call was not begun: its completion is not called, and the request still has its references.
  void send(uint64_t id, proto::Envelope& envelope, EncodedTensors&& tensors, bool borrow,
            PendingCalls::Taken call);
  // As send(), for a request that is sent again if its connection breaks before the answer.
  void send_repeatable(uint64_t id, proto::Envelope& envelope, EncodedTensors tensors,
                       PendingCalls::Taken call);
  // As Agent::call_service.
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors, const ServiceOptions& options);
  // Cancels a call: unless it has completed, it completes with `reason`, and the callee receives a Cancel.
  void cancel(uint64_t id, absl::Status reason);

  // Handle events that end calls.
  void answer(const Worker& from, EnvelopePtr envelope, std::vector<transport::Buffer> buffers);
  void link_closed(const Worker& peer, const Link& link, const absl::Status& reason);
  void worker_lost(const Worker& peer, const absl::Status& reason);
  void end_all(const absl::Status& reason);

  uint64_t calls_made() const { return calls_made_.load(); }
  void count(AgentStatistics& statistics) const;
  void count(AgentTables& tables) const;

 private:
  // As Peers::link_to(). Error: FailedPrecondition after shutdown.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer) const;
  // Adds the call to the table, and runs the steps that follow. From here on its answer and its deadline can
  // end it, and so does an exception of a step.
  void add_pending(uint64_t id, PendingCalls::Taken call, absl::FunctionRef<void()> steps);
  // Runs steps of a call that is in the table. An exception ends the call.
  void run_steps(uint64_t id, absl::FunctionRef<void()> steps) noexcept;
  // Schedules the alarm for deadlines, which must be that of the table.
  void set_alarm(absl::Time alarm);
  // Sends a Cancel to the callee and completes the call.
  void retract(uint64_t id, PendingCalls::Taken call, absl::Status reason) noexcept;
  // Ends the calls whose deadline has come, and schedules the next alarm.
  void expire(absl::Time alarm);
  // Completes calls whose deadline has come.
  void end_expired(PendingCalls::Expired::Calls& calls) noexcept;
  // Decodes the answer or finds the reason of the failure, gives back what the call has held, and passes the
  // result to the program. `call` must have been taken out of the table, so that it completes once. An
  // exception becomes the error of the call.
  void complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer) noexcept;
  // The last steps, which may wait or run code of the program.
  void finish(PendingCalls::Taken call, absl::StatusOr<IncomingPayload>&& result,
              const ProfiledCall::Events& events) noexcept;
  // Completes a call whose message could not be sent, or whose link has ended. Its error is the reason why
  // this agent or the callee's worker has ended, or else `failure`.
  void fail(PendingCalls::Taken call, absl::Status failure) noexcept;
  // Counts the end of a call.
  void count_end(const PendingCall& call, absl::StatusCode code);

  // Sends a call that is in the table, and has this link. `to` is its callee.
  void transmit(uint64_t id, const std::shared_ptr<Link>& link, const Worker& to, proto::Envelope& envelope,
                EncodedTensors&& tensors, bool borrow);

  // Sends a call whose tensors have been copied from a device.
  void send_now(CopiedCall& call);

  // ---- Repeatable calls.

  // Begins the next attempt of a call. May connect, and therefore block.
  void attempt(uint64_t id);
  // Handles a failed attempt: schedules the next one, or fails the call.
  void attempt_failed(uint64_t id, const absl::Status& reason);

  AgentRuntime& runtime_;
  Peers& peers_;
  RRefService& rrefs_;

  // Synchronised by themselves.
  PendingCalls pending_;
  RequestIds request_ids_;
  CopiedCalls copied_;
  std::atomic<uint64_t> calls_made_{0};
  std::atomic<uint64_t> calls_repeated_{0};
  std::atomic<uint64_t> late_answers_{0};
  std::atomic<uint64_t> calls_failed_{0};
  LatencyHistogram latencies_;
};

// Whether a call of `bytes` to this worker can be sent now without waiting: it is not the own worker, the
// connection exists, and the flow window is at most half full. The other half is for the threads that ask at
// the same time.
bool sends_at_once(const Caller& caller, const Worker& to, uint64_t bytes);

}  // namespace gradwire::rpc
