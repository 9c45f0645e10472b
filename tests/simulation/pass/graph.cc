#include "gradwire/tests/simulation/pass/graph.h"

#include <algorithm>

namespace gradwire::pass_simulation {

using Kind = GraphNode::Kind;

// Returns an edge to a node of the worker on which a new node may depend: in most cases a received tensor.
Edge Graph::random_edge(int worker, Random& random) {
  const uint64_t wanted = random.below(10);
  for (int tries = 0; tries < 8 && !nodes.empty(); ++tries) {
    const int n = static_cast<int>(random.below(nodes.size()));
    const GraphNode& node = nodes[n];
    if (node.worker != worker) continue;
    if (node.kind == Kind::kRecv && wanted < 7) {
      return {n, static_cast<int>(random.below(messages[node.message].tensors.size()))};
    }
    if (node.kind == Kind::kPlain && wanted == 7) return {n, 0};
    if (node.kind == Kind::kLeaf && wanted == 8) return {n, 0};
  }
  nodes.push_back({.kind = Kind::kLeaf, .worker = worker});
  return {static_cast<int>(nodes.size()) - 1, 0};
}

int Graph::add_plain(int worker, Random& random) {
  GraphNode node{.kind = Kind::kPlain, .worker = worker};
  const int edges = static_cast<int>(random.between(1, 3));
  for (int i = 0; i < edges; ++i) node.next.push_back(random_edge(worker, random));
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

Graph Graph::random(const Options& options, Random& random) {
  Graph graph;
  std::vector<int> present{options.origin};
  std::vector<uint64_t> numbers(kMaxWorkers);
  for (int m = 0; m < options.messages; ++m) {
    GraphMessage message;
    // The sender is a worker that a message reached, with a preference for those reached last.
    const std::size_t back = std::min(random.below(present.size()), random.below(present.size()));
    message.from = present[present.size() - 1 - back];
    message.to = static_cast<int>(random.below(options.workers));
    if (message.to == message.from && random.below(3) != 0) message.to = (message.to + 1) % options.workers;
    message.number = ++numbers[message.from];
    const int tensors = static_cast<int>(random.between(1, 3));
    bool known = !random.per_mille(options.unknown);
    for (int i = 0; i < tensors; ++i) {
      Edge edge = random.below(5) == 0 ? graph.random_edge(message.from, random)
                                       : Edge{graph.add_plain(message.from, random), 0};
      message.tensors.push_back(edge);
      // The route that the sender computes when it traces where the gradient of this tensor goes.
      autograd::GradientRoute route;
      std::vector<Edge> edges{edge};
      while (known && !edges.empty()) {
        const Edge at = edges.back();
        edges.pop_back();
        const GraphNode& node = graph.nodes[at.node];
        edges.insert(edges.end(), node.next.begin(), node.next.end());
        if (node.kind != Kind::kRecv) continue;
        const GraphMessage& received = graph.messages[node.message];
        if (received.route.empty()) {
          known = false;
          break;
        }
        route.add(incarnation(received.from), received.number, static_cast<uint32_t>(at.input));
        route.add(received.route[at.input]);
      }
      message.route.push_back(std::move(route));
    }
    if (!known) message.route.clear();
    graph.nodes.push_back({.kind = Kind::kRecv, .worker = message.to, .message = m});
    message.recv = static_cast<int>(graph.nodes.size()) - 1;
    present.push_back(message.to);
    graph.messages.push_back(std::move(message));
  }
  return graph;
}

std::vector<Edge> Graph::random_roots(int worker, Random& random) {
  std::vector<Edge> roots;
  const int count = static_cast<int>(random.between(1, 3));
  for (int i = 0; i < count; ++i) {
    roots.push_back(random.below(5) == 0 ? random_edge(worker, random) : Edge{add_plain(worker, random), 0});
  }
  return roots;
}

int Graph::find(int sender, uint64_t number) const {
  for (std::size_t m = 0; m < messages.size(); ++m) {
    if (messages[m].from == sender && messages[m].number == number) return static_cast<int>(m);
  }
  return -1;
}

Expected::Expected(const Graph& graph, int root, const std::vector<Edge>& roots,
                   const std::vector<Edge>* inputs)
    : used(graph.messages.size()),
      shipped(graph.messages.size()),
      kept(graph.nodes.size()),
      participants(1u << root) {
  std::vector<bool> reached(graph.nodes.size());
  std::vector<Edge> edges = roots;
  while (!edges.empty()) {
    const Edge edge = edges.back();
    edges.pop_back();
    const GraphNode& node = graph.nodes[edge.node];
    if (node.kind == Kind::kRecv) {
      reached[edge.node] = true;
      if (used[node.message] & 1 << edge.input) continue;
      used[node.message] |= 1 << edge.input;
      const GraphMessage& message = graph.messages[node.message];
      participants |= 1u << message.from;
      edges.push_back(message.tensors[edge.input]);
    } else if (!reached[edge.node]) {
      reached[edge.node] = true;
      edges.insert(edges.end(), node.next.begin(), node.next.end());
    }
  }
  for (uint8_t mask : used) has_unused_message |= mask == 0;
  if (inputs == nullptr) {
    shipped = used;
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      kept[n] = graph.nodes[n].kind == Kind::kLeaf && reached[n] ? 1 : 0;
    }
    return;
  }
  std::vector<uint8_t> captured(graph.nodes.size());
  for (const Edge& input : *inputs) captured[input.node] |= 1 << input.input;
  std::vector<bool> needed(graph.nodes.size());
  const auto live = [&](const Edge& edge) {
    const GraphNode& node = graph.nodes[edge.node];
    if (captured[edge.node] & 1 << edge.input) return true;
    return node.kind == Kind::kRecv ? (shipped[node.message] & 1 << edge.input) != 0 : needed[edge.node];
  };
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const GraphNode& node = graph.nodes[n];
    if (!reached[n]) continue;
    for (const Edge& edge : node.next) needed[n] = needed[n] || live(edge);
    if (node.kind == Kind::kRecv) {
      const GraphMessage& message = graph.messages[node.message];
      for (std::size_t i = 0; i < message.tensors.size(); ++i) {
        if (used[node.message] & 1 << i && live(message.tensors[i])) shipped[node.message] |= 1 << i;
      }
      kept[n] = captured[n] & used[node.message];
    } else {
      kept[n] = captured[n];
    }
  }
}

}  // namespace gradwire::pass_simulation
