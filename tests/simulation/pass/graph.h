#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/tests/simulation/harness/random.h"

// The protocol of a backward pass under a seeded scheduler: the production state machines, and what drives
// them without threads, tensors or sockets.
namespace gradwire::pass_simulation {

using simulation::Random;

inline constexpr int kMaxWorkers = 5;
inline uint64_t incarnation(int worker) { return static_cast<uint64_t>(worker) + 1; }
inline int worker_of(uint64_t incarnation) { return static_cast<int>(incarnation) - 1; }

// An edge of the graph: gradients go along it to the input of a node.
struct Edge {
  int node = 0;
  int input = 0;
};

struct GraphNode {
  enum class Kind : uint8_t { kPlain, kRecv, kLeaf };
  Kind kind = Kind::kPlain;
  int worker = 0;
  // Of a recv node.
  int message = -1;
  std::vector<Edge> next;
};

// One message of the forward with tensors that require grad, at most eight.
struct GraphMessage {
  int from = 0;
  int to = 0;
  // Unique among those of its sender.
  uint64_t number = 0;
  // By tensor: what the send node leads to.
  std::vector<Edge> tensors;
  // Where they arrived.
  int recv = -1;
  // By tensor, or none at all where the sender does not know.
  std::vector<autograd::GradientRoute> route;
};

// Tensors of one message, as bits.
struct Tensors {
  int message = 0;
  uint8_t mask = 0;
};

// What the forward in one context has left on all workers. Nodes lead to nodes with lower numbers alone.
struct Graph {
  struct Options {
    int workers = 2;
    int origin = 0;
    int messages = 0;
    // Of 1000 messages, those whose sender does not say where gradients go on to.
    uint32_t unknown = 0;
  };

  std::vector<GraphNode> nodes;
  std::vector<GraphMessage> messages;

  static Graph random(const Options& options, Random& random);
  // Roots of a backward pass at `worker`: new nodes of its, or tensors that it received.
  std::vector<Edge> random_roots(int worker, Random& random);
  // The message of this sender's with this number; -1: none.
  int find(int sender, uint64_t number) const;

 private:
  Edge random_edge(int worker, Random& random);
  int add_plain(int worker, Random& random);
};

// What one backward pass must do: found by looking at the whole graph at once.
struct Expected {
  Expected(const Graph& graph, int root, const std::vector<Edge>& roots, const std::vector<Edge>* inputs);

  // By message: the outputs that the roots depend on, and those whose gradients must be shipped.
  std::vector<uint8_t> used;
  std::vector<uint8_t> shipped;
  // By node: gradients that must be kept, of leaves and of inputs.
  std::vector<uint8_t> kept;
  // Workers that take part, as bits.
  uint32_t participants = 0;
  // There is a message that nothing used depends on: in the fast mode its sender waits for ever.
  bool something_unused = false;
};

}  // namespace gradwire::pass_simulation
