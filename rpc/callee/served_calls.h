#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/callee/deduplicator.h"
#include "gradwire/rpc/callee/slow_readers.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/limits/caller_budget.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/trace_context.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;

// A request as it arrived.
struct IncomingCall {
  Worker from;
  // The link on which it arrived first.
  std::shared_ptr<Link> link;
  EnvelopePtr envelope;
  std::vector<transport::Buffer> buffers;
  std::vector<std::shared_ptr<RRefHandle>> references;
  CancellationToken token;
  // Time of arrival, on Clock::system().
  absl::Time arrived;
  absl::Time deadline;
  // The size of the request as it arrived.
  uint64_t bytes = 0;
  // The trace to which the call belongs; nullptr if none is known.
  std::shared_ptr<const TraceContext> trace;

  const proto::Request& request() const { return (*envelope)->request(); }
  // Whether the caller may send the same request again.
  bool is_repeatable() const { return request().request_id() != 0; }
  // Whether its result stays at this worker, as the value of an RRef.
  bool is_remote() const { return request().has_result_rref(); }
};

// The deadline of a request that arrived at `arrived`.
absl::Time deadline_of(const proto::Request& request, absl::Time arrived);

// The size of a message as it arrived.
uint64_t bytes_of(const EnvelopePtr& envelope, const std::vector<transport::Buffer>& buffers);

// The calls that one agent is running for other workers, and the answers that it keeps for repeated calls
// (proto/rpc.proto, "Repeated calls"). The Deduplicator finds out which requests are repetitions.
// Thread-safe. The agent keeps this object alive while calls are running.
class ServedCalls {
 public:
  explicit ServedCalls(AgentRuntime& runtime);

  // A request has arrived on this link. Returns ResourceExhausted if its caller does not read the answers of
  // this worker. After too many such requests the link is closed.
  absl::Status check_reader(const Worker& from, Link& link);
  // As above, for a request that arrived before and is about to run.
  absl::Status check_reader_again(const Worker& from, Link& link);

  // The result of begin().
  enum class Begun {
    kRun,      // It is new: run it.
    kRefused,  // Answer it with the error `refused`. It has not entered the table.
    kDone,     // It has been handled completely, as a repetition.
  };
  // Call when a request has arrived. `source`: the source of call.token. `state`: the state of the call, for
  // reports; it must live as long as the call's request.
  Begun begin(const IncomingCall& call, const CancellationSource& source, const SharedCallState& state,
              absl::Status& refused);
  // Call before the answer of a repeatable call is sent. Keeps the answer for repetitions, and returns the
  // link on which it must be sent.
  std::shared_ptr<Link> keep_answer(const IncomingCall& call, const proto::Envelope& envelope,
                                    const std::vector<transport::Buffer>& buffers);
  // Call before the answer is sent: with the answer, the caller has room in its flow window for another call.
  void leave_limits(const IncomingCall& call);
  // Call when the answer has been sent.
  void end(const IncomingCall& call);
  // As begin() and end(), for a service call. begin_service() returns FailedPrecondition after stop(). Only
  // `counted` services need room in the limits of their caller.
  absl::Status begin_service(const Worker& from, uint64_t bytes, bool counted);
  void end_service(const Worker& from, uint64_t bytes, bool counted);

  // Cancel calls, because the caller has sent a Cancel, because its connection has ended, or because it is
  // lost. When only the connection ends, a repeatable call goes on until its deadline, because its caller may
  // repeat it on another connection.
  void cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason);
  void cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost);
  void worker_lost(const Worker& caller, const absl::Status& reason);
  // Refuses all later requests, and cancels all calls.
  void stop(const absl::Status& reason);

  std::size_t in_progress() const;
  void count(AgentTables& tables) const;
  // The calls that have not ended, in no order. The state kNested is left to find_nested().
  std::vector<CallReport> calls_in_progress() const;
  uint64_t served() const { return served_.load(); }

 private:
  struct Repeatable;
  // A call that has begun and not ended.
  struct Running {
    CancellationSource source;
    // The state of a repeatable call; else nullptr.
    std::shared_ptr<Repeatable> repeatable;
    // The request, which lives as long as this entry.
    const proto::Request* request = nullptr;
    const SharedCallState* state = nullptr;  // Lives as long as this entry.
    uint64_t caller = 0;                     // Its incarnation.
    absl::Time since;
    absl::Time deadline;
  };
  // The link on which a call arrived last, and its call id.
  using CallKey = std::pair<uint64_t, uint64_t>;
  using Calls = absl::flat_hash_map<CallKey, Running>;

  Begun begin_repeatable(const IncomingCall& call, const CancellationSource& source,
                         const SharedCallState& state, absl::Status& refused);
  // Counts a call of another worker, if there is room; otherwise returns the limit that it exceeds.
  std::optional<CallerLimit> enter_locked(const IncomingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status refuse(const Worker& from, const CallerLimit& limit);
  CallerLimit unread_limit() const {
    return {"bytes of answers that it has not read", "max_unread_bytes",
            runtime_.options.caller_limits.max_unread_bytes};
  }
  // Call when the link of a running repeatable call has closed.
  void orphan_locked(const CallKey& key, Running& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Calls::iterator find_orphan_locked(const Worker& from, uint64_t call_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire_answers();

  AgentRuntime& runtime_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  Deduplicator repeats_ ABSL_GUARDED_BY(mutex_);
  // Calls whose link has closed, by the caller's incarnation and the call id. A Cancel for them may arrive on
  // another link.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, CallKey> orphans_ ABSL_GUARDED_BY(mutex_);
  // Whether a timer that drops expired answers is scheduled.
  bool expiry_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of services that are running, and of answers of repeatable calls that are being sent.
  std::size_t answers_in_progress_ ABSL_GUARDED_BY(mutex_) = 0;

  // The calls and services of each caller, against its limits.
  CallerBudget calls_of_callers_ ABSL_GUARDED_BY(mutex_);
  CallerBudget services_of_callers_ ABSL_GUARDED_BY(mutex_);

  std::atomic<uint64_t> served_{0};
  // Synchronised by itself.
  SlowReaders slow_readers_;
};

}  // namespace gradwire::rpc
