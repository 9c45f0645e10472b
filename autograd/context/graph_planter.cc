#include "gradwire/autograd/context/graph_planter.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/graph_boundary.h"
#include "gradwire/autograd/context/position.h"
#include "gradwire/autograd/context/service_numbers.h"
#include "gradwire/autograd/context/unjoined.h"
#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/proto/autograd.pb.h"
#include "gradwire/rpc/calls/agent.h"

namespace gradwire::autograd {

absl::Status GraphPlanter::outgoing_request(const rpc::Worker& to, rpc::TensorSet* tensors,
                                            proto::Payload& payload) {
  GRADWIRE_RETURN_IF_ERROR(outgoing(to, tensors, payload, {}));
  if (payload.has_graph()) {
    write_position(*ActiveContextSlot::get(), *payload.mutable_graph()->mutable_position());
  }
  return absl::OkStatus();
}

absl::Status GraphPlanter::outgoing_answer(const rpc::Worker& to, rpc::TensorSet* tensors,
                                           proto::Payload& payload) {
  // Most answers are given without a context.
  if (ActiveContextSlot::get() == nullptr) return absl::OkStatus();
  const std::shared_ptr<const rpc::CallContext> call = rpc::CallContext::current();
  return outgoing(to, tensors, payload, call == nullptr ? rpc::CallIdentity() : call->identity());
}

absl::Status GraphPlanter::outgoing(const rpc::Worker& to, rpc::TensorSet* tensors, proto::Payload& payload,
                                    const rpc::CallIdentity& answered) {
  const std::shared_ptr<const ActiveContext>& active = ActiveContextSlot::get();
  if (active == nullptr || active->ended()) return absl::OkStatus();
  if (active->self != agent_.self().incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make a call of agent \"", agent_.self().name,
                     "\": the current autograd context ", rpc::to_string(active->id),
                     " belongs to another agent of this process; open a Context of the agent that calls"));
  }
  // The receiver must be recorded before the message is sent, because it must be notified when the context
  // ends.
  const std::shared_ptr<ContextState> context = contexts_.touch(active->id, to.incarnation);
  if (context == nullptr) return absl::OkStatus();

  proto::Graph& graph = *payload.mutable_graph();
  rpc::to_proto(context->id, *graph.mutable_context());
  if (tensors != nullptr && at::GradMode::is_enabled()) {
    plant_send(*context, agent_.self().incarnation, to.incarnation,
               static_cast<rpc::TorchTensors*>(tensors)->tensors, graph, answered);
  }
  // The receiver must learn that the context is admitted, from this message or from an ADMITTED. admitted()
  // sets the flag and then reads the recorded receivers; this function has recorded the receiver above and
  // now reads the flag. So if the flag is still false here, admitted() finds the receiver.
  MutexLock lock(context->mutex);
  graph.set_admitted(context->admitted);
  return absl::OkStatus();
}

// The message was not sent, so no gradient can come back for it. In the fast mode a pass waits for gradients
// at every send node, so this one must be removed. It is destroyed after the lock has been released.
void GraphPlanter::outgoing_failed(const rpc::Worker&, const proto::Graph& graph) {
  auto context = contexts_.find(rpc::from_proto(graph.context()));
  if (!context.ok() || graph.message() == 0) return;
  std::shared_ptr<SendNode> dropped;
  MutexLock lock((*context)->mutex);
  auto found = (*context)->send_nodes.find(graph.message());
  if (found == (*context)->send_nodes.end()) return;
  dropped = std::move(found->second);
  (*context)->send_nodes.erase(found);
}

// 1. Make the context live. A request of a released context ends here.
// 2. Record an admission that the request reports.
// 3. Wait at the barrier, without blocking a thread.
// 4. Afterwards the context counts as admitted on all workers. If the barrier shuts down, the continuation
//    gets an error and does not use this object, which may be gone.
uint64_t GraphPlanter::admit(const rpc::Worker& from, const proto::Graph& graph, absl::Time deadline,
                             absl::AnyInvocable<void(absl::Status)> proceed) {
  const rpc::Id id = rpc::from_proto(graph.context());
  absl::StatusOr<std::shared_ptr<ContextState>> context = contexts_.enter(id, from.incarnation);
  if (!context.ok()) {
    proceed(context.status());
    return 0;
  }
  if (graph.admitted()) admitted(*context, from.incarnation);
  bool known;
  {
    MutexLock lock((*context)->mutex);
    known = (*context)->admitted;
  }
  return barrier_.request(
      id, known, deadline,
      [this, context = *context, proceed = std::move(proceed)](absl::Status status) mutable {
        if (status.ok()) {
          if (barrier_.armed()) admitted(context, 0);
          // If the context was released during the wait, only this call can remove it from the
          // barrier.
          if (!contexts_.find(context->id).ok()) barrier_.backward_ended(context->id);
        }
        proceed(std::move(status));
      });
}

// Each worker forwards the news once, when its own flag changes, to the workers that it sent messages to. So
// it reaches every worker of the context and then stops, also if the messages go in a circle.
void GraphPlanter::admitted(const std::shared_ptr<ContextState>& context, uint64_t from) {
  {
    MutexLock lock(context->mutex);
    if (std::exchange(context->admitted, true)) return;
  }
  barrier_.admitted(context->id);
  proto::Admitted note;
  rpc::to_proto(context->id, *note.mutable_context());
  for (uint64_t incarnation : contexts_.touched(context->id)) {
    if (incarnation == from) continue;
    absl::StatusOr<rpc::Worker> worker = agent_.find_worker_by_incarnation(incarnation);
    if (!worker.ok()) continue;
    agent_.call_service(*worker, kAdmittedService, note.SerializeAsString(), nullptr, {.repeat = true})
        .on_ready_inline([](const auto&) {});
  }
}

absl::Status GraphPlanter::plant(const rpc::Worker& from, const ContextState& context,
                                 rpc::TensorSet* tensors, const proto::Payload& payload) const {
  std::vector<at::Tensor> none;
  auto* set = static_cast<rpc::TorchTensors*>(tensors);
  return plant_recv(context.id, agent_.self().incarnation, from, set == nullptr ? none : set->tensors,
                    rpc::sender_devices(payload), payload.graph());
}

absl::Status GraphPlanter::incoming_request(const rpc::Worker& from, rpc::TensorSet* tensors,
                                            const proto::Payload& payload) {
  std::optional<Timeline::Path> path = read_position(payload.graph().position());
  if (!path) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the position of a request from worker \"", from.name, "\" is malformed: got ",
        payload.graph().position_size(), " numbers, expected pairs, at most ", Timeline::kMaxDepth));
  }
  GRADWIRE_ASSIGN_OR_RETURN(auto context,
                            contexts_.enter(rpc::from_proto(payload.graph().context()), from.incarnation));
  GRADWIRE_RETURN_IF_ERROR(plant(from, *context, tensors, payload));
  ActiveContextSlot::set(context->active->serving(*std::move(path)));
  return absl::OkStatus();
}

absl::Status GraphPlanter::incoming_answer(const rpc::Worker& from, rpc::TensorSet* tensors,
                                           const proto::Payload& payload) {
  if (!payload.has_graph()) {
    if (tensors != nullptr) mark_unjoined(from.name, static_cast<rpc::TorchTensors*>(tensors)->tensors);
    return absl::OkStatus();
  }
  // The context may have been released in the meantime. The caller still wants the answer, but no gradients
  // can follow it.
  auto context = contexts_.find(rpc::from_proto(payload.graph().context()));
  if (!context.ok()) return absl::OkStatus();
  if (payload.graph().admitted()) admitted(*context, from.incarnation);
  return plant(from, **context, tensors, payload);
}

}  // namespace gradwire::autograd
