#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "autograd/gradients.h"
#include "autograd/recv_node.h"
#include "autograd/send_node.h"
#include "rpc/id.h"

namespace gradwire::autograd {

// One worker's graph in one backward pass: counts the gradients that will arrive at each node, then runs the
// nodes whose gradients have. Replaces libtorch's engine, which runs a whole graph or none of it and is not
// open to extension; it keeps the engine's order (the node created last first) and its treatment of hooks, so
// that results are equal bit for bit where the order of additions is.
//
// First mark_roots and mark_outputs; then deliver_*, and tasks: next(), run(), finished(). run() is the part
// that calls user code (nodes and hooks); everything else is quick. Not thread-safe, but run() touches its
// task alone: a lock that guards the rest need not be held. Keeps the graph alive.
class LocalExecutor {
 public:
  using Node = torch::autograd::Node;
  using variable_list = torch::autograd::variable_list;

  struct Options {
    rpc::Id context;
    // This worker's incarnation.
    uint64_t self = 0;
    // Nodes keep what they saved for another pass.
    bool retain_graph = false;
    // Sums contributions in the order of the nodes they come from, not in that of their arrival.
    bool sum_in_edge_order = false;
    // Where false, leaves have their hooks called and their gradients dropped.
    bool keep_leaves = true;
  };

  // Outputs of a recv node that the walk has reached for the first time, ascending.
  struct Reached {
    std::shared_ptr<RecvNode> node;
    std::vector<uint32_t> outputs;
  };
  // Who of the walk's reach needs MARK.
  using Reach = std::vector<Reached>;

  struct Task {
    uint32_t record = 0;
    Node* node = nullptr;
    // Set when the node is one of these.
    RecvNode* recv = nullptr;
    const at::Tensor* leaf = nullptr;
    variable_list inputs;
    // After run(): the node's outputs; for a recv node the gradients to ship, undefined where not marked.
    variable_list outputs;
    // After run(): gradients to keep: of the leaf, and of tensors asked for.
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  };

  explicit LocalExecutor(Options options);
  ~LocalExecutor();

  // ---- Counting. Errors: FailedPrecondition when the graph leaves the context, naming both.

  // The pass begins at `roots`; once. `inputs`: tensors whose gradients are kept, leaves and others.
  absl::StatusOr<Reach> mark_roots(torch::autograd::edge_list roots, const std::vector<at::Tensor>& inputs);
  // Gradients for these outputs of `node` will arrive in one message. InvalidArgument for outputs it does not
  // have.
  absl::StatusOr<Reach> mark_outputs(const std::shared_ptr<SendNode>& node,
                                     const std::vector<uint32_t>& outputs);
  // What has been counted since the last call: nodes that will run, messages and root gradients that will
  // arrive.
  uint64_t take_counted() { return std::exchange(counted_, 0); }

  // ---- Running. GradMode is off.

  absl::Status deliver_roots(variable_list gradients);
  // One for each output of the send node, undefined where none came; undefined ones may follow.
  // InvalidArgument when the message is not awaited, or its gradients do not fit the tensors that were sent.
  absl::Status deliver_message(uint64_t message, variable_list gradients);

  // The next node to run; false when none has all it waits for.
  bool next(Task& task);
  // Runs the node and its hooks. Exceptions become the status, with the node's name.
  absl::Status run(Task& task) const;
  // Hands the outputs on.
  void finished(Task& task);

 private:
  enum class Kind : uint8_t { kPlain, kRecv, kLeaf };

  struct Contribution {
    uint32_t input;
    uint64_t from;
    uint64_t message;
    uint32_t edge;
    at::Tensor gradient;
  };
  struct Record {
    Node* node = nullptr;
    Kind kind = Kind::kPlain;
    uint32_t missing = 0;
    torch::autograd::InputBuffer buffer{0};
    // Instead of the buffer when summing in edge order.
    std::vector<Contribution> contributions;
    // Of a recv node: outputs reached.
    std::vector<bool> marked;
  };
  struct Sent {
    std::shared_ptr<SendNode> node;
    std::vector<bool> marked;
    bool arrived = false;
  };
  struct Ready {
    uint64_t sequence;
    uint64_t order;
    uint32_t record;
    bool operator<(const Ready& other) const {
      return sequence != other.sequence ? sequence < other.sequence : order > other.order;
    }
  };

  // Counts one more gradient along `edge`; walks on from its node if it is new.
  void count(const torch::autograd::Edge& edge, Reach& reach);
  absl::Status walk(Reach& reach);
  uint32_t visit(const torch::autograd::Edge& edge);
  void deliver(const torch::autograd::Edge& edge, at::Tensor gradient, uint64_t from, uint64_t message,
               uint32_t index);

  const Options options_;

  torch::autograd::edge_list roots_;
  absl::flat_hash_map<uint64_t, Sent> sent_;
  absl::flat_hash_map<const Node*, uint32_t> index_;
  std::deque<Record> records_;
  // Nodes found by the walk under way whose own edges have not been followed.
  std::vector<uint32_t> unwalked_;
  absl::flat_hash_map<const void*, std::size_t> reach_index_;
  absl::flat_hash_map<const Node*, std::vector<std::pair<uint32_t, at::Tensor>>> captures_;
  std::vector<std::shared_ptr<Node>> captured_;
  uint64_t counted_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Ready> ready_;
};

}  // namespace gradwire::autograd
