#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class AgentServices;

// The answer to a service call.
struct ServiceReply {
  std::string body;
  // nullptr when the answer has no tensors.
  std::shared_ptr<TensorSet> tensors;
  // Nobody waits for it: it may leave a few milliseconds later.
  bool late = false;
};

// How a message to a counterpart is sent.
struct ServiceOptions {
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  // Sent again, on a new connection, when the old one broke before the answer, until the worker is lost.
  // For messages that may arrive twice.
  bool repeat = false;
};

// A message of a layer above to its counterpart on another worker, to be answered exactly once.
struct ServiceCall {
  Worker from;
  uint32_t service = 0;
  std::string body;
  std::shared_ptr<TensorSet> tensors;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  // Thread-safe; may be called after the agent has shut down. An error travels with this worker's name.
  std::function<void(absl::StatusOr<ServiceReply>)> reply;
};

// Joins the messages of calls to autograd graphs. Implemented by //autograd. All calls but admit() come from
// the thread that encodes or decodes the message, in its ExecutionState.
class GraphHook {
 public:
  virtual ~GraphHook() = default;

  // A request for `to` is about to be encoded. Fills payload.graph where a context is current, and plants a
  // send node for those of `tensors` (may be nullptr) that require grad. An error fails the call.
  virtual absl::Status outgoing_request(const Worker& to, TensorSet* tensors, proto::Payload& payload) = 0;
  // The same for an answer.
  virtual absl::Status outgoing_answer(const Worker& to, TensorSet* tensors, proto::Payload& payload) = 0;

  // The outgoing message never left: what was planted for it is forgotten.
  virtual void outgoing_failed(const Worker& to, const proto::Graph& graph) = 0;

  // May the request run now? Calls `proceed` when it may, at once or later on another thread, or with the
  // reason why it will not. Called when the request arrives, on a transport's thread: does not block.
  virtual void admit(const Worker& from, const proto::Graph& graph, absl::Time deadline,
                     absl::AnyInvocable<void(absl::Status)> proceed) = 0;

  // A request with payload.graph arrived: plants a recv node, replaces in `tensors` (may be nullptr) those
  // that require grad, and makes the context current on this thread, for the handler that runs next.
  virtual absl::Status incoming_request(const Worker& from, TensorSet* tensors,
                                        const proto::Payload& payload) = 0;
  // An answer arrived, with payload.graph: the same without the last. Also called for an answer without
  // payload.graph in which a tensor requires grad: it was made outside every context.
  virtual absl::Status incoming_answer(const Worker& from, TensorSet* tensors,
                                       const proto::Payload& payload) = 0;
};

// A part of an agent that belongs to a layer above, one for each agent. Created when the agent starts, before
// it serves; destroyed with it. Thread-safe.
class AgentExtension {
 public:
  virtual ~AgentExtension() = default;

  // Whether serve() is for calls of this service.
  virtual bool serves(uint32_t service) const = 0;
  // On an executor thread, in the clean ExecutionState. May block (with Futures).
  virtual void serve(ServiceCall call) = 0;
  // Calls of this service are served on the thread that received them, with no agent current: serve() only
  // hands them to the thread that is to do the work, neither blocks nor calls the user's code.
  virtual bool serves_on_arrival(uint32_t /*service*/) const { return false; }

  // `worker` is dead, has left or has come back as another incarnation; once for each incarnation. Must not
  // block.
  virtual void worker_lost(const Worker& worker, const absl::Status& reason) {}
  // Nothing of its own is under way with other workers: a graceful shutdown waits for this.
  virtual bool idle() const { return true; }
  // The agent stops: what waits ends with `reason`. Afterwards no call to the agent succeeds.
  virtual void shutdown(const absl::Status& reason) {}

  // The extension's graph hook, if it has one. At most one extension of an agent has.
  virtual GraphHook* graph_hook() { return nullptr; }
};

// Called during static initialisation; every agent that starts afterwards makes one.
using ExtensionFactory = std::unique_ptr<AgentExtension> (*)(AgentServices& agent);
void register_extension(ExtensionFactory factory);

}  // namespace gradwire::rpc
