#include "gradwire/autograd/graph/route_tracer.h"

#include <vector>

#include "gradwire/autograd/graph/graph_nodes.h"
#include "gradwire/base/containers/hash_map.h"

namespace gradwire::autograd {

// Walks the graph depth first. A node without edges ends a path:
// 1. A recv node: the gradient goes to the sender of its message, and from there along the route that the
//    sender has sent with it. Without that route the trace fails.
// 2. Any other node, for example of a leaf: the gradient stays on this worker.
// The graph is not changed meanwhile, so pointers to its edges stay valid.
std::optional<GradientRoute> RouteTracer::trace(const torch::autograd::Edge& start) {
  using torch::autograd::Edge;
  using torch::autograd::Node;
  GradientRoute route;
  HashSet<const Node*> seen;
  std::vector<const Edge*> edges{&start};
  while (!edges.empty()) {
    const Edge& edge = *edges.back();
    edges.pop_back();
    if (!edge.is_valid()) continue;
    const Node* const node = edge.function.get();
    // `seen` matters where paths join again: without it the work would grow exponentially with their number.
    // The limit is for all calls together, so the cost of a message does not grow with its number of
    // tensors.
    if (!node->next_edges().empty()) {
      if (!seen.insert(node).second) continue;
      if (++nodes_ > kMaxNodes) return std::nullopt;
      for (const Edge& next : node->next_edges()) edges.push_back(&next);
      continue;
    }
    const auto* const recv = dynamic_cast<const RecvNode*>(node);
    if (recv == nullptr) continue;
    if (recv->context() != context_ || recv->self() != self_) return std::nullopt;
    const GradientRoute* further = recv->route(edge.input_nr);
    if (further == nullptr) return std::nullopt;
    route.add(recv->sender().incarnation, recv->message(), edge.input_nr);
    route.add(*further);
    if (route.tensors() > GradientRoute::kMaxTensors) return std::nullopt;
  }
  return route;
}

}  // namespace gradwire::autograd
