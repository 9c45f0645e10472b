#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/autograd/graph/gradient_route.h"
#include "gradwire/tests/simulation/harness/random.h"

// Simulates the protocol of a backward pass with a seeded scheduler. It contains the production state
// machines, and a driver without threads, tensors or sockets.
namespace gradwire::pass_simulation {

using simulation::Random;

inline constexpr int kMaxWorkers = 5;
inline uint64_t incarnation(int worker) { return static_cast<uint64_t>(worker) + 1; }
inline int worker_of(uint64_t incarnation) { return static_cast<int>(incarnation) - 1; }

// An edge of the graph: a gradient flows along it to the input of a node.
struct Edge {
  int node = 0;
  int input = 0;
};

struct GraphNode {
  enum class Kind : uint8_t { kPlain, kRecv, kLeaf };
  Kind kind = Kind::kPlain;
  int worker = 0;
  // Recv nodes only: the received message.
  int message = -1;
  std::vector<Edge> next;
};

// One message of the forward pass. It has at most eight tensors that require grad.
struct GraphMessage {
  int from = 0;
  int to = 0;
  // Number of the message, unique at its sender.
  uint64_t number = 0;
  // By tensor: the edge that follows the send node.
  std::vector<Edge> tensors;
  // The recv node at the receiver.
  int recv = -1;
  // By tensor: the route of its gradient. Empty if the sender does not know the routes.
  std::vector<autograd::GradientRoute> route;
};

// Bit set of tensors of one message.
struct Tensors {
  int message = 0;
  uint8_t mask = 0;
};

// The graph that the forward pass in one context has built on all workers. An edge always leads to a node
// with a lower number.
struct Graph {
  struct Options {
    int workers = 2;
    int origin = 0;
    int messages = 0;
    // How many of 1000 messages come from a sender that does not know the routes of their gradients.
    uint32_t unknown = 0;
  };

  std::vector<GraphNode> nodes;
  std::vector<GraphMessage> messages;

  static Graph random(const Options& options, Random& random);
  // Returns roots for a backward pass at `worker`: new nodes of the worker, or tensors that it received.
  std::vector<Edge> random_roots(int worker, Random& random);
  // Returns the index of the sender's message with this number; -1 if there is no such message.
  int find(int sender, uint64_t number) const;

 private:
  Edge random_edge(int worker, Random& random);
  int add_plain(int worker, Random& random);
};

// The expected result of one backward pass, computed from the graph of all workers.
struct Expected {
  Expected(const Graph& graph, int root, const std::vector<Edge>& roots, const std::vector<Edge>* inputs);

  // By message, as bit sets: the outputs that the roots depend on, and those whose gradients must be shipped.
  std::vector<uint8_t> used;
  std::vector<uint8_t> shipped;
  // By node, as bit sets: the gradients of leaves and of inputs that must be kept.
  std::vector<uint8_t> kept;
  // Bit set of the workers that take part.
  uint32_t participants = 0;
  // Whether the roots do not depend on some message. In the fast mode the sender of such a message waits
  // until a timeout.
  bool has_unused_message = false;
};

}  // namespace gradwire::pass_simulation
