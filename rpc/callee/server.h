#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/callee/callee_cost.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
class RRefService;

// Serves the requests that come in to one agent: finds the callee and its object, queues where order was
// promised, admits it to its autograd context, runs it on the executor and sends the answer back.
// Thread-safe. Its arguments outlive it.
class Server {
 public:
  Server(AgentRuntime& runtime, RRefService& rrefs);

  // On a transport's thread; does not block.
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers);

  ServedCalls& calls() { return calls_; }

 private:
  class ServiceAnswer;

  void serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers);
  // Hands what the message says to the layer that it is for, which may be none.
  void read_service(AgentExtension* layer, const Worker& from, const proto::Envelope& envelope,
                    std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer);
  // Waits until the call's autograd context may run here, then queues it.
  void admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand);
  // Runs the call on the executor, after those that it must not overtake.
  void enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand);
  // The same for a method of a serial object. One that waits for its turn until its time is up fails with the
  // name of the one that runs.
  void enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  std::shared_ptr<Strand> order_strand(const Worker& from, uint64_t key);
  void refuse(Link& link, uint64_t call_id, const absl::Status& status);

  AgentRuntime& runtime_;
  RRefService& rrefs_;

  // Synchronised by themselves.
  ServedCalls calls_;
  CalleeCost service_cost_;
  CalleeCost fetch_cost_;
  const ServedCall::Parts parts_;

  Mutex mutex_;
  // By caller and order key; kept while calls use them.
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, std::weak_ptr<Strand>> strands_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
