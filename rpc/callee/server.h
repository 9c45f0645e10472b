#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/cancellation.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/callee/callee_cost.h"
#include "gradwire/rpc/callee/deduplicator.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Agent;
class Link;
class RRefService;
class ServedCall;

// Serves the requests that come in to one agent: finds the callee and its object, queues where order was
// promised, admits it to its autograd context, runs it on the executor and sends the answer back.
// Thread-safe.
class Server {
 public:
  Server(Agent& agent, RRefService& rrefs, std::shared_ptr<ThreadPool> executor, const RetryOptions& retry);

  // On a transport's thread; does not block.
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers);
  // The caller has given up, or its connection is gone: nobody waits for these answers. But a call that may come again
  // on another connection goes on, until its deadline, unless its caller is lost.
  void cancel(const Worker& from, uint64_t link, uint64_t call_id, const absl::Status& reason);
  void cancel_link(uint64_t link, const absl::Status& reason, bool caller_is_lost);
  void worker_lost(const Worker& caller, const absl::Status& reason);
  // Refuses requests from now on and fires every call's CancellationToken.
  void stop(const absl::Status& reason);

  std::size_t under_way() const;
  void count(AgentTables& tables) const;
  // The names of what runs, or waits for its turn, now.
  std::vector<std::string> running_callees() const;
  // A call that runs, or waits for its turn, now.
  struct CallUnderWay {
    std::string callee;
    uint64_t caller = 0;  // The incarnation.
    absl::Time since;
  };
  std::vector<CallUnderWay> calls_under_way() const;
  uint64_t served() const { return served_.load(); }

 private:
  friend class ServedCall;
  class ServiceAnswer;

  // A call under way.
  struct Repeatable;
  struct Running {
    CancellationSource source;
    // Of a call that may come again.
    std::shared_ptr<Repeatable> repeatable;
    // The call's, which lives for as long as it is in the table.
    const proto::Request* request = nullptr;
    uint64_t caller = 0;  // The incarnation.
    absl::Time since;
  };
  // By link and call id: the connection that a call came in on last.
  using CallKey = std::pair<uint64_t, uint64_t>;
  using Calls = absl::flat_hash_map<CallKey, Running>;

  // Repeated calls (server_repeats.cc).
  static absl::Status check_repeatable(const proto::Request& request);
  // Whether the request is new, and to run or, when `stopped` says why, to fail. Else it has been dealt with.
  bool arrive(const Worker& from, const std::shared_ptr<Link>& link, const proto::Request& request,
              absl::Time arrived, const CancellationSource& source, absl::Status& stopped);
  // Keeps the answer for repetitions; returns the link that it goes on.
  std::shared_ptr<Link> end_repeatable(const ServedCall& call, const proto::Envelope& envelope,
                                       const std::vector<transport::Buffer>& buffers);
  // Its link has closed.
  void orphan_locked(const CallKey& key, Running& running) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Calls::iterator find_orphan_locked(const Worker& from, uint64_t call_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire_answers();

  void serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers);
  // Hands what the message says to the layer that it is for.
  void read_service(const Worker& from, const proto::Envelope& envelope,
                    std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer);
  // Waits until the call's autograd context may run here, then queues it.
  void admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand);
  // Runs the call on the executor, after those that it must not overtake.
  void enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand);
  // The same for a method of a serial object. One that waits for its turn until its time is up fails with the name of the
  // one that runs.
  void enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  std::shared_ptr<Strand> order_strand(const Worker& from, uint64_t key);
  void ended(const ServedCall& call);
  void refuse(Link& link, uint64_t call_id, const absl::Status& status);

  Agent& agent_;
  RRefService& rrefs_;
  const std::shared_ptr<ThreadPool> executor_;
  const RetryOptions retry_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  Calls calls_ ABSL_GUARDED_BY(mutex_);
  Deduplicator repeats_ ABSL_GUARDED_BY(mutex_);
  // Calls whose link has closed, by their caller's incarnation and call id: a Cancel may come on another link.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, CallKey> orphans_ ABSL_GUARDED_BY(mutex_);
  // A timer is going to come for the answers that are kept.
  bool expires_ ABSL_GUARDED_BY(mutex_) = false;
  // By caller and order key; kept while calls use them.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Strand>> strands_ ABSL_GUARDED_BY(mutex_);
  // Services, and answers of repeatable calls that are about to be sent.
  std::size_t answers_under_way_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<uint64_t> served_{0};
  CalleeCost service_cost_;
  CalleeCost fetch_cost_;
};

}  // namespace gradwire::rpc
