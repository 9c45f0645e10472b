#pragma once

#include <atomic>
#include <memory>
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
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;

// A request as it came in.
struct IncomingCall {
  Worker from;
  // The one that it came in on first.
  std::shared_ptr<Link> link;
  EnvelopePtr envelope;
  std::vector<transport::Buffer> buffers;
  std::vector<std::shared_ptr<RRefHandle>> references;
  CancellationToken token;
  // When the request arrived, on Clock::system(). Its age counts from here.
  absl::Time arrived;
  absl::Time deadline;

  const proto::Request& request() const { return (*envelope)->request(); }
  // Whether the same request may come again.
  bool is_repeatable() const { return request().request_id() != 0; }
  // Whether its result stays here.
  bool is_remote() const { return request().has_result_rref(); }
};

// When the caller of a request that arrived at `arrived` stops waiting.
absl::Time deadline_of(const proto::Request& request, absl::Time arrived);

// The callee of a request, for messages: the registered name, "aten::add", "fetch".
std::string callee_of(const proto::Request& request);

// The calls that one agent has under way for others, and the answers that it keeps for calls that come again
// (proto/rpc.proto, "Repeated calls"): the Deduplicator says which request is which. Thread-safe. The agent
// keeps it for as long as calls run.
class ServedCalls {
 public:
  explicit ServedCalls(AgentRuntime& runtime);

  // Whether the request, with the parts of `call` that it had on arrival, is new, and to run or, when
  // `stopped` says why, to fail. Else it has been dealt with. `source`: of its token.
  bool begin(const IncomingCall& call, const CancellationSource& source, absl::Status& stopped);
  // Before the answer of a repeatable call is sent: keeps it for repetitions; returns the link that it goes
  // on.
  std::shared_ptr<Link> keep_answer(const IncomingCall& call, const proto::Envelope& envelope,
                                    const std::vector<transport::Buffer>& buffers);
  // The answer has been sent.
  void end(const IncomingCall& call);
  // The same for a message of the framework itself. False when this refuses requests.
  bool begin_service();
  void end_service();

  // The caller has given up, or its connection is gone: nobody waits for these answers. But a call that may
  // come again on another connection goes on, until its deadline, unless its caller is lost.
  void cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason);
  void cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost);
  void worker_lost(const Worker& caller, const absl::Status& reason);
  // Refuses requests from now on and fires every call's CancellationToken.
  void stop(const absl::Status& reason);

  std::size_t under_way() const;
  void count(AgentTables& tables) const;
  // A call that runs, or waits for its turn, now.
  struct UnderWay {
    std::string callee;
    uint64_t caller = 0;  // The incarnation.
    absl::Time since;
  };
  std::vector<UnderWay> calls_under_way() const;
  uint64_t served() const { return served_.load(); }

 private:
  struct Repeatable;
  // A call under way.
  struct Running {
    CancellationSource source;
    // The state of a call that may come again.
    std::shared_ptr<Repeatable> repeatable;
    // The call's, which lives for as long as it is in the table.
    const proto::Request* request = nullptr;
    uint64_t caller = 0;  // The incarnation.
    absl::Time since;
  };
  // By link and call id: the connection that a call came in on last.
  using CallKey = std::pair<uint64_t, uint64_t>;
  using Calls = absl::flat_hash_map<CallKey, Running>;

  bool begin_repeatable(const IncomingCall& call, const CancellationSource& source, absl::Status& stopped);
  // Its link has closed.
  void orphan_locked(const CallKey& key, Running& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Calls::iterator find_orphan_locked(const Worker& from, uint64_t call_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire_answers();

  AgentRuntime& runtime_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  Deduplicator repeats_ ABSL_GUARDED_BY(mutex_);
  // Calls whose link has closed, by their caller's incarnation and call id: a Cancel may come on another
  // link.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, CallKey> orphans_ ABSL_GUARDED_BY(mutex_);
  // A timer is going to come for the answers that are kept.
  bool expires_ ABSL_GUARDED_BY(mutex_) = false;
  // Services, and answers of repeatable calls that are about to be sent.
  std::size_t answers_under_way_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<uint64_t> served_{0};
};

}  // namespace gradwire::rpc
