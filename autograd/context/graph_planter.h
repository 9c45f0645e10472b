#pragma once

#include <cstdint>
#include <memory>

#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/context/step_barrier_driver.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::autograd {

// Plants send and recv nodes for the messages of one agent, and admits incoming requests through the step
// barrier. Thread-safe.
class GraphPlanter : public rpc::GraphHook {
 public:
  // `agent`, `contexts` and `barrier` must outlive this object.
  GraphPlanter(rpc::AgentServices& agent, Contexts& contexts, StepBarrierDriver& barrier)
      : agent_(agent), contexts_(contexts), barrier_(barrier) {}

  absl::Status outgoing_request(const rpc::Worker& to, rpc::TensorSet* tensors,
                                proto::Payload& payload) override;
  absl::Status outgoing_answer(const rpc::Worker& to, rpc::TensorSet* tensors,
                               proto::Payload& payload) override;
  void outgoing_failed(const rpc::Worker& to, const proto::Graph& graph) override;
  uint64_t admit(const rpc::Worker& from, const proto::Graph& graph, absl::Time deadline,
                 absl::AnyInvocable<void(absl::Status)> proceed) override;
  void give_up(uint64_t wait, const absl::Status& reason) override { barrier_.give_up(wait, reason); }
  absl::Status incoming_request(const rpc::Worker& from, rpc::TensorSet* tensors,
                                const proto::Payload& payload) override;
  absl::Status incoming_answer(const rpc::Worker& from, rpc::TensorSet* tensors,
                               const proto::Payload& payload) override;

  // Records that the context has passed a step barrier, on this worker (`from` is 0) or as worker `from`
  // reported. Notifies the workers that messages of the context were sent to before.
  void admitted(const std::shared_ptr<ContextState>& context, uint64_t from);

 private:
  // `answered`: the call whose answer the message is, if it is one.
  absl::Status outgoing(const rpc::Worker& to, rpc::TensorSet* tensors, proto::Payload& payload,
                        const rpc::CallIdentity& answered);
  absl::Status plant(const rpc::Worker& from, const ContextState& context, rpc::TensorSet* tensors,
                     const proto::Payload& payload) const;

  rpc::AgentServices& agent_;
  Contexts& contexts_;
  StepBarrierDriver& barrier_;
};

}  // namespace gradwire::autograd
