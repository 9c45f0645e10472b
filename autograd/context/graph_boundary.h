#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/autograd/context/context_state.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/worker.h"

// Where a message joins the graphs of two workers.
namespace gradwire::autograd {

// A message of worker `self` with these tensors is about to go to `receiver`: plants a send node for those
// that require grad, and says so in `graph`. Does nothing when none does.
void plant_send(ContextState& context, uint64_t self, uint64_t receiver,
                const std::vector<at::Tensor>& tensors, proto::Graph& graph);

using SendNodes = std::vector<std::shared_ptr<SendNode>>;
// The nodes of these messages. NotFound when a message left none.
absl::StatusOr<SendNodes> find_send_nodes(ContextState& context, const std::vector<uint64_t>& messages);

// The message arrived at worker `self`: those of `tensors` that `graph` names become outputs of a recv node,
// the others are not leaves. InvalidArgument for a graph that no worker sends.
absl::Status plant_recv(const rpc::Id& context, uint64_t self, const rpc::Worker& from,
                        std::vector<at::Tensor>& tensors, const proto::Graph& graph);

}  // namespace gradwire::autograd
