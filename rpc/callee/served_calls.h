#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/callee/deduplicator.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/flight/call_report.h"
#include "gradwire/rpc/limits/caller_budget.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/runtime/runtime.h"
#include "gradwire/rpc/trace/trace_context.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
class ServedCall;

// Knows which callers leave answers of this worker unread, over all of their links. Thread-safe.
class SlowReaders {
 public:
  explicit SlowReaders(const CallerLimits& limits)
      : answers_(limits.max_unread_bytes, limits.max_calls + limits.max_messages) {}

  // A request of this caller has arrived on the link.
  UnreadAnswers::Verdict on_request(uint64_t caller, LinkSender& link);
  // Whether a request that arrived before may run.
  bool may_run(uint64_t caller, LinkSender& link);
  // The link has ended.
  void forget(uint64_t link);

  // Number of links on which answers wait unread.
  std::size_t links() const;

 private:
  struct Entry {
    uint64_t caller = 0;
    std::weak_ptr<LinkSender> link;
  };

  // Most requests find nothing unread, and need no lock.
  bool none_waits(LinkSender& link) const {
    return link.unread_bytes() == 0 && size_.load(std::memory_order_relaxed) == 0;
  }
  // Links that are released without the lock.
  using Kept = std::vector<std::shared_ptr<LinkSender>>;
  // The bytes that wait on all links of the caller. Removes links on which none waits any more.
  uint64_t unread_locked(uint64_t caller, LinkSender& link, Kept& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  // By the number of the link: those on which answers were waiting at the last request.
  HashMap<uint64_t, Entry> links_ ABSL_GUARDED_BY(mutex_);
  UnreadAnswers answers_ ABSL_GUARDED_BY(mutex_);

  // The size of links_, for requests that take no lock.
  std::atomic<std::size_t> size_{0};
};

// The calls that wait for their turn on a serial object, and the calls that they wait for: for those who
// search for deadlocks. A call enters only if another one runs on its object. Thread-safe.
class TurnWaits {
 public:
  // The call that runs on the object.
  struct Holder {
    CallIdentity call;
    std::string callee;
  };
  struct Wait {
    CallIdentity waiter;
    Holder holder;
  };

  // `call` waits for its turn on `strand`. It leaves the table by itself when its TurnWait is over.
  void add(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  std::vector<Wait> waits() const;

 private:
  struct Entry {
    std::weak_ptr<ServedCall> call;
    std::weak_ptr<Strand> strand;
  };

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Number of entries at which those that have left are removed.
  std::size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 8;
};

// The outermost call of a request from the worker with this incarnation: the request's own call, if no
// handler has made it.
CallIdentity root_of(const proto::Request& request, uint64_t caller);

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
  CallIdentity identity() const { return {from.incarnation, request().call_id()}; }
  // As CallContext::root().
  CallIdentity root() const { return root_of(request(), from.incarnation); }
  // Whether the caller may send the same request again.
  bool is_repeatable() const { return request().request_id() != 0; }
  // Whether it fetches items of a stream (rpc/streams/stream_batch.h has the name of the method).
  bool reads_stream() const {
    return absl::StartsWith(request().method(), "Stream[") && absl::EndsWith(request().method(), "].take");
  }
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
  Begun begin(const IncomingCall& call, CancellationSource source, const SharedCallState& state,
              absl::Status& refused);
  // Call before the answer of a repeatable call is sent. Keeps the answer for repetitions, and returns the
  // link on which it must be sent.
  std::shared_ptr<Link> keep_answer(const IncomingCall& call, const proto::Envelope& envelope,
                                    const std::vector<transport::Buffer>& buffers) noexcept;
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
  // Refuses all later calls, except those which the work in progress may need: calls of this worker, calls
  // whose outermost call (IncomingCall::root) is one of this worker or one in progress now, further items of
  // streams, and repetitions of known requests. So the calls in progress come to an end, whatever other
  // workers call, unless a worker names a false outermost call. Then the timeout of the shutdown is the
  // limit.
  void leave(const absl::Status& reason);
  // Refuses all later requests, and cancels all calls.
  void stop(const absl::Status& reason);

  // The memory of a request: from its arrival until the last part of the agent has let go of its call.
  void request_arrived() { requests_.fetch_add(1, std::memory_order_relaxed); }
  void request_dropped() { requests_.fetch_sub(1, std::memory_order_relaxed); }

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
    // Its token has fired because of the deadline.
    bool expired = false;
  };
  // The link on which a call arrived last, and its call id.
  using CallKey = std::pair<uint64_t, uint64_t>;
  using Calls = HashMap<CallKey, Running>;

  Begun begin_repeatable(const IncomingCall& call, CancellationSource source, const SharedCallState& state,
                         absl::Status& refused);
  // Counts a call of another worker, if there is room; otherwise returns the limit that it exceeds.
  std::optional<CallerLimit> enter_locked(const IncomingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // OK unless leave() refuses this call, which is not a repetition.
  absl::Status check_leaving_locked(const IncomingCall& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status refuse(const Worker& from, const CallerLimit& limit);
  CallerLimit unread_limit() const {
    return {"bytes of answers that it has not read", "max_unread_bytes",
            runtime_.options.caller_limits.max_unread_bytes};
  }
  // Call when the link of a running repeatable call has closed.
  void orphan_locked(const CallKey& key, const Running& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Calls::iterator find_orphan_locked(const Worker& from, uint64_t call_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A call with this deadline has begun. Returns the time for schedule_alarm(), to be called without the
  // lock.
  absl::Time next_alarm_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void schedule_alarm(absl::Time alarm);
  void begin_alarm(absl::Time alarm) noexcept;
  // Fires the tokens of the calls whose deadlines have passed. `alarm`: the time that was scheduled.
  void expire(absl::Time alarm);
  void expire_answers();

  AgentRuntime& runtime_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  // After leave(): why new calls are refused, and the outermost calls of those that were in progress then.
  absl::Status left_ ABSL_GUARDED_BY(mutex_);
  HashSet<CallIdentity> roots_ ABSL_GUARDED_BY(mutex_);
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  Deduplicator repeats_ ABSL_GUARDED_BY(mutex_);
  // Calls whose link has closed, by the caller's incarnation and the call id. A Cancel for them may arrive on
  // another link.
  HashMap<std::pair<uint64_t, uint64_t>, CallKey> orphans_ ABSL_GUARDED_BY(mutex_);
  // Time of the next alarm, which is not later than any deadline that has not passed, or next_scan_.
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // No alarm is set for an earlier time.
  absl::Time next_scan_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Whether a timer that drops expired answers is scheduled.
  bool expiry_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  // Number of services that are running, and of answers of repeatable calls that are being sent.
  std::size_t answers_in_progress_ ABSL_GUARDED_BY(mutex_) = 0;

  // The calls and services of each caller, against its limits.
  CallerBudget calls_of_callers_ ABSL_GUARDED_BY(mutex_);
  CallerBudget services_of_callers_ ABSL_GUARDED_BY(mutex_);

  std::atomic<uint64_t> served_{0};
  std::atomic<std::size_t> requests_{0};
  // Synchronised by itself.
  SlowReaders slow_readers_;
};

}  // namespace gradwire::rpc
