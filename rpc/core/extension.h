#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::metrics {
class Samples;
}

namespace gradwire::proto {
class AgentState;
}

namespace gradwire::rpc {

class AgentServices;

// The answer to a service call.
struct ServiceReply {
  std::string body;
  // nullptr if the answer has no tensors.
  std::shared_ptr<TensorSet> tensors;
  // No thread waits for the answer: it may be sent some milliseconds later, together with other messages.
  bool deferrable = false;
  // When it is sent: the caller's device for each of `tensors`. Empty: the device of the same name.
  std::vector<Device> destinations;
};

// Options of a message to a counterpart.
struct ServiceOptions {
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  // Whether the message is sent again on a new connection if the old one breaks before the answer, until the
  // worker is lost. Only for messages that may arrive twice.
  bool repeat = false;
  // The receiver's device for each of the tensors. Empty: the device of the same name.
  std::vector<Device> destinations;
};

// A message from the counterpart on another worker. It must be answered exactly once.
struct ServiceCall {
  Worker from;
  uint32_t service = 0;
  std::string body;
  std::shared_ptr<TensorSet> tensors;
  // Their devices at the sender; empty if all were on the CPU.
  std::vector<Device> sender_devices;
  // After it the tensors may be used; nullptr if they are on the CPU. While serve() runs, the current streams
  // have waited for it.
  StreamFencePtr fence;
  absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
  // Sends the answer. Thread-safe; may be called after the agent has shut down. An error gets this worker's
  // name.
  std::function<void(absl::StatusOr<ServiceReply>)> reply;
};

// Connects the messages of calls to autograd graphs. Implemented by //autograd. All methods except admit()
// are called on the thread that encodes or decodes the message, in its ExecutionState.
class GraphHook {
 public:
  virtual ~GraphHook() = default;

  // A request to `to` is about to be encoded. If a context is current, fills payload.graph and adds a send
  // node for each of `tensors` (may be nullptr) that requires grad. An error fails the call.
  virtual absl::Status outgoing_request(const Worker& to, TensorSet* tensors, proto::Payload& payload) = 0;
  // As outgoing_request(), for an answer.
  virtual absl::Status outgoing_answer(const Worker& to, TensorSet* tensors, proto::Payload& payload) = 0;

  // The outgoing message was not sent: removes what outgoing_request() or outgoing_answer() added for it.
  virtual void outgoing_failed(const Worker& to, const proto::Graph& graph) = 0;

  // Calls `proceed` when the request may run, at once or later on another thread, or with the reason why it
  // must not run. Called when the request arrives, on a thread of the transport: must not block. Returns the
  // number of the wait for give_up(); 0 if `proceed` was called at once.
  virtual uint64_t admit(const Worker& from, const proto::Graph& graph, absl::Time deadline,
                         absl::AnyInvocable<void(absl::Status)> proceed) = 0;
  // The request has ended: calls its `proceed` with `reason`. Has no effect if the wait has ended. Must not
  // block.
  virtual void give_up(uint64_t wait, const absl::Status& reason) = 0;

  // A request with payload.graph has arrived. Adds a receive node, replaces those of `tensors` (may be
  // nullptr) that require grad, and makes the context current on this thread, for the handler that runs next.
  virtual absl::Status incoming_request(const Worker& from, TensorSet* tensors,
                                        const proto::Payload& payload) = 0;
  // An answer with payload.graph has arrived. As incoming_request(), but does not make the context current.
  // Also called for an answer without payload.graph in which a tensor requires grad: that answer was made
  // outside every context.
  virtual absl::Status incoming_answer(const Worker& from, TensorSet* tensors,
                                       const proto::Payload& payload) = 0;
};

// A part of an agent that belongs to a higher layer, such as autograd. There is one per agent and layer. It
// is created when the agent starts, before the agent serves calls, and destroyed with the agent. Thread-safe.
class AgentExtension {
 public:
  virtual ~AgentExtension() = default;

  // The name of its services, by which the rules of a policy allow them: one of security::kServices.
  virtual absl::string_view name() const = 0;
  // Whether calls of this service only give back what earlier ones have made. They are served whatever the
  // policy says, so that nothing is left behind when its rules have changed.
  virtual bool gives_back(uint32_t /*service*/) const { return false; }
  // Whether serve() handles calls of this service.
  virtual bool serves(uint32_t service) const = 0;
  // Handles a call. Called on a thread of the executor, in a clean ExecutionState. May block (on Futures).
  virtual void serve(ServiceCall call) = 0;
  // Whether calls of this service are handled on the thread that received them, with no current agent. Then
  // serve() must only pass the call to the thread that does the work. It must not block, and must not run
  // user code.
  virtual bool serves_on_arrival(uint32_t /*service*/) const { return false; }

  // `worker` is dead, has left, or was replaced by another incarnation. Called once for each incarnation.
  // Must not block.
  virtual void worker_lost(const Worker& worker, const absl::Status& reason) {}
  // Whether the extension has no work in progress with other workers. A graceful shutdown waits for this.
  virtual bool idle() const { return true; }
  // Adds the present values of the metrics that the extension does not count in AgentServices::metrics(). May
  // be called at any time until the agent is destroyed. Must not block.
  virtual void collect(metrics::Samples& samples) const {}
  // The agent stops: every wait must end with `reason`. No later call to the agent succeeds.
  virtual void shutdown(const absl::Status& reason) {}

  // Adds the state of this layer to what an observer sees (proto/inspect.proto): at most `most` entries of
  // each list. Called on a thread of the executor. Takes only short locks.
  virtual void inspect(uint32_t most, proto::AgentState& state) const {}

  // The graph hook of this extension, or nullptr. At most one extension of an agent has a graph hook.
  virtual GraphHook* graph_hook() { return nullptr; }
};

// Registers an extension. Call during static initialisation. Every agent that starts later creates one.
using ExtensionFactory = std::unique_ptr<AgentExtension> (*)(AgentServices& agent);
void register_extension(ExtensionFactory factory);

}  // namespace gradwire::rpc
