#pragma once

#include <memory>
#include <vector>

#include "gradwire/base/threads/strand.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/callee/callee_cost.h"
#include "gradwire/rpc/callee/order_strands.h"
#include "gradwire/rpc/callee/served_call.h"
#include "gradwire/rpc/callee/served_calls.h"
#include "gradwire/rpc/callee/turn_waits.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

class Link;
class RRefService;

// Serves the requests that arrive at one agent. It finds the callee and its object, queues calls whose order
// is guaranteed, admits each call to its autograd context, runs it on the executor, and sends the answer.
// Thread-safe. Its arguments must outlive it.
class Server {
 public:
  Server(AgentRuntime& runtime, RRefService& rrefs);

  // Handles a request. Called on a thread of the transport; does not block.
  void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                  std::vector<transport::Buffer> buffers);

  ServedCalls& calls() { return calls_; }
  const TurnWaits& turn_waits() const { return turn_waits_; }

 private:
  class ServiceAnswer;

  // Asks the policy, which exists.
  absl::Status check_service(AgentExtension* layer, const Worker& from, uint32_t number);
  void serve_service(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers);
  // Decodes a service call and passes it to its layer, which may be nullptr.
  void read_service(AgentExtension* layer, const Worker& from, const proto::Envelope& envelope,
                    std::vector<transport::Buffer> buffers, std::shared_ptr<ServiceAnswer> answer);
  // Queues the call once its autograd context admits it.
  void admit(std::shared_ptr<ServedCall> call, std::shared_ptr<Strand> object_strand);
  // Runs the call on the executor, after the calls that it must not overtake.
  void enqueue(std::shared_ptr<ServedCall> call, const std::shared_ptr<Strand>& object_strand);
  // As enqueue(), for a method of a serial object. A call that is still waiting at its deadline fails, and
  // the error names the running call.
  void enqueue_serial(const std::shared_ptr<ServedCall>& call, const std::shared_ptr<Strand>& strand);
  void refuse(Link& link, uint64_t call_id, const absl::Status& status);

  AgentRuntime& runtime_;
  RRefService& rrefs_;

  // Synchronised by themselves.
  ServedCalls calls_;
  TurnWaits turn_waits_;
  CalleeCost service_cost_;
  CalleeCost fetch_cost_;
  const ServedCall::Parts parts_;
  OrderStrands order_strands_;
};

}  // namespace gradwire::rpc
