#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/codec/device.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/worker.h"

// Functions that join the graphs of two workers where a message goes from one to the other.
namespace gradwire::autograd {

// Plants a send node for those of `tensors` that require grad, and describes them in `graph`. Must be called
// before worker `self` sends a message with these tensors to `receiver`. Does nothing if no tensor requires
// grad. `answered`: the call whose answer the message is, if it is one.
void plant_send(ContextState& context, uint64_t self, uint64_t receiver,
                const std::vector<at::Tensor>& tensors, proto::Graph& graph,
                const rpc::CallIdentity& answered = {});

using SendNodes = std::vector<std::shared_ptr<SendNode>>;
// Returns the send nodes of these messages, in order. NotFound if a message has no send node.
absl::StatusOr<SendNodes> find_send_nodes(ContextState& context, const std::vector<uint64_t>& messages);

// Makes those of `tensors` that `graph` names outputs of a recv node, and detaches the others. Called when
// the message of worker `from` has arrived at worker `self`. `sender_devices`: the devices of the tensors at
// the sender; empty if all were on the CPU. InvalidArgument for a malformed `graph`.
absl::Status plant_recv(const rpc::Id& context, uint64_t self, const rpc::Worker& from,
                        std::vector<at::Tensor>& tensors, const std::vector<rpc::Device>& sender_devices,
                        const proto::Graph& graph);

}  // namespace gradwire::autograd
