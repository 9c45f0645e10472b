#include "gradwire/autograd/context/graph_boundary.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/autograd/graph/graph_nodes.h"
#include "gradwire/autograd/graph/route_tracer.h"
#include "gradwire/base/error.h"

namespace gradwire::autograd {
namespace {

bool is_differentiable(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

// Reads the route of each tensor's gradient from the message. Returns an empty list unless the sender has
// sent the route of every tensor.
std::vector<GradientRoute> read_route(const proto::Graph& graph) {
  std::vector<GradientRoute> all;
  if (graph.route_size() != graph.tensors_size()) return all;
  for (const proto::GradientRoute& each : graph.route()) {
    std::optional<GradientRoute> route = gradient_route_from_proto(each.messages());
    if (!route) return {};
    all.push_back(*std::move(route));
  }
  return all;
}

}  // namespace

// 1. Find the tensors that gradients can come back for.
// 2. Trace the route of each tensor's gradient. The receiver can use the routes only if every tensor has one.
//    So if one trace fails, the message has no routes.
// 3. Allocate the number and store the node under it, in one critical section and before the message is
//    sent. So the node can be found when a MARK or RUN names the message.
void plant_send(ContextState& context, uint64_t self, uint64_t receiver,
                const std::vector<at::Tensor>& tensors, proto::Graph& graph,
                const rpc::CallIdentity& answered) {
  torch::autograd::edge_list edges;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || !tensors[i].requires_grad() || !is_differentiable(tensors[i])) continue;
    graph.add_tensors(static_cast<uint32_t>(i));
    edges.push_back(torch::autograd::impl::gradient_edge(tensors[i]));
  }
  if (edges.empty()) return;
  RouteTracer tracer(context.id, self);
  bool may_continue = false;
  for (const torch::autograd::Edge& edge : edges) {
    std::optional<GradientRoute> route = tracer.trace(edge);
    if (!route) {
      // The gradients may go anywhere, so the caller must assume that they continue to other workers.
      graph.clear_route();
      may_continue = true;
      break;
    }
    may_continue |= route->tensors() > 0;
    to_proto(*route, *graph.add_route()->mutable_messages());
  }
  MutexLock lock(context.mutex);
  graph.set_message(++context.messages);
  auto node = std::shared_ptr<SendNode>(
      new SendNode(context.id, graph.message(), receiver, std::move(edges), may_continue, answered),
      torch::autograd::deleteNode);
  context.send_nodes.emplace(graph.message(), std::move(node));
}

// The numbers come from a peer, so one that is not in the table is an error and not a CHECK.
absl::StatusOr<SendNodes> find_send_nodes(ContextState& context, const std::vector<uint64_t>& messages) {
  SendNodes nodes;
  MutexLock lock(context.mutex);
  for (uint64_t message : messages) {
    auto found = context.send_nodes.find(message);
    if (found == context.send_nodes.end()) {
      return absl::NotFoundError(
          absl::StrCat("message ", message, " of the autograd context ", rpc::to_string(context.id),
                       " not found: this worker sent no such message with tensors that require grad"));
    }
    nodes.push_back(found->second);
  }
  return nodes;
}

absl::Status plant_recv(const rpc::Id& context, uint64_t self, const rpc::Worker& from,
                        std::vector<at::Tensor>& tensors, const std::vector<rpc::Device>& sender_devices,
                        const proto::Graph& graph) {
  // A tensor that the sender did not join to the graph (no_grad mode) is not a leaf here either.
  for (at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) tensor = tensor.detach();
  }
  if (graph.message() == 0) return absl::OkStatus();
  // The list comes from a peer. Ascending indexes exclude a tensor that is listed twice, which would get two
  // histories.
  std::vector<at::Tensor*> outputs;
  std::vector<rpc::Device> devices;
  int64_t last = -1;
  for (uint32_t index : graph.tensors()) {
    if (index >= tensors.size() || static_cast<int64_t>(index) <= last || !tensors[index].defined() ||
        !is_differentiable(tensors[index])) {
      return absl::InvalidArgumentError(
          absl::StrCat("malformed message from worker \"", from.name, "\": tensor ", index,
                       " is listed as one that requires grad, expected ascending indexes below ",
                       tensors.size(), " of floating-point or complex tensors"));
    }
    last = index;
    outputs.push_back(&tensors[index]);
    if (index < sender_devices.size()) devices.push_back(sender_devices[index]);
  }
  if (outputs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("malformed message from worker \"", from.name,
                                                   "\": it has the graph message number ", graph.message(),
                                                   ", but no tensor that requires grad"));
  }
  auto node = std::shared_ptr<RecvNode>(
      new RecvNode(context, self, from, graph.message(), read_route(graph), std::move(devices)),
      torch::autograd::deleteNode);
  try {
    set_outputs(node, std::move(outputs));
  } catch (...) {
    return status_from_exception(std::current_exception());
  }
  return absl::OkStatus();
}

}  // namespace gradwire::autograd
