#include "gradwire/autograd/graph/look_ahead.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gradwire/autograd/graph/recv_node.h"

namespace gradwire::autograd {

std::optional<Onward> LookAhead::from(const torch::autograd::Edge& start) {
  using torch::autograd::Edge;
  using torch::autograd::Node;
  Onward onward;
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Edge*> edges{&start};
  while (!edges.empty()) {
    const Edge& edge = *edges.back();
    edges.pop_back();
    if (!edge.is_valid()) continue;
    const Node* const node = edge.function.get();
    if (!node->next_edges().empty()) {
      if (!seen.insert(node).second) continue;
      if (++nodes_ > kMaxNodes) return std::nullopt;
      for (const Edge& next : node->next_edges()) edges.push_back(&next);
      continue;
    }
    const auto* const recv = dynamic_cast<const RecvNode*>(node);
    if (recv == nullptr) continue;
    if (recv->context() != context_ || recv->self() != self_) return std::nullopt;
    const Onward* further = recv->onward(edge.input_nr);
    if (further == nullptr) return std::nullopt;
    onward.add(recv->sender().incarnation, recv->message(), edge.input_nr);
    onward.add(*further);
    if (onward.tensors() > Onward::kMaxTensors) return std::nullopt;
  }
  return onward;
}

}  // namespace gradwire::autograd
