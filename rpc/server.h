#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/cancellation.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "rpc/callee_cost.h"
#include "rpc/envelope.h"
#include "rpc/extension.h"
#include "rpc/strand.h"
#include "rpc/worker.h"
#include "transport/message.h"

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
  Server(Agent& agent, RRefService& rrefs, std::shared_ptr<ThreadPool> executor);

  // On a transport's thread; does not block.
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers);
  // The caller has given up, or its connection is gone: nobody waits for these answers.
  void cancel(uint64_t link, uint64_t call_id, const absl::Status& reason);
  void cancel_link(uint64_t link, const absl::Status& reason);
  // Refuses requests from now on and fires every call's CancellationToken.
  void stop(const absl::Status& reason);

  std::size_t under_way() const;
  uint64_t served() const { return served_.load(); }

 private:
  friend class ServedCall;
  class ServiceAnswer;
  void serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers);
  // Waits until the call's autograd context may run here, then queues it.
  void admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand);
  // Runs the call on the executor, after those that it must not overtake.
  void enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand);
  std::shared_ptr<Strand> order_strand(const Worker& from, uint64_t key);
  void ended(const ServedCall& call);
  void refuse(Link& link, uint64_t call_id, const absl::Status& status);

  Agent& agent_;
  RRefService& rrefs_;
  const std::shared_ptr<ThreadPool> executor_;

  mutable Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  // By link and call id.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, CancellationSource> calls_ ABSL_GUARDED_BY(mutex_);
  // By caller and order key; kept while calls use them.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Strand>> strands_ ABSL_GUARDED_BY(mutex_);
  std::size_t services_under_way_ ABSL_GUARDED_BY(mutex_) = 0;

  std::atomic<uint64_t> served_{0};
  CalleeCost service_cost_;
  CalleeCost fetch_cost_;
};

}  // namespace gradwire::rpc
