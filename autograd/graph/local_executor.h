#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "gradwire/autograd/graph/node_task.h"
#include "gradwire/autograd/graph/recv_node.h"
#include "gradwire/autograd/graph/send_node.h"
#include "gradwire/autograd/graph/timeline.h"

namespace gradwire::autograd {

// One worker's graph in one backward pass: counts the gradients that will arrive at each node, then runs the
// nodes whose gradients have. Replaces libtorch's engine, which runs a whole graph or none of it and is not
// open to extension; it keeps the engine's order (the node created last first) and its treatment of hooks.
//
// Gradients that come to the same input of a node are added in the order in which that engine would have
// added them, the youngest producer's first, whatever the order in which they arrive: so the sums are equal
// bit for bit. One that comes too early is held.
//
// First mark_roots and mark_outputs; then deliver_*, and tasks: next(), run(), finished(). run() is the part
// that calls user code (nodes and hooks); everything else is quick. Not thread-safe, but run() touches its
// task alone: a lock that guards the rest need not be held. Keeps the graph alive.
//
// With Options::inputs_only only nodes run that a gradient of the inputs depends on. They are known when the
// whole graph has been marked: need_outputs() says what the other workers have found, begin_run() ends the
// marking.
class LocalExecutor {
 public:
  using Node = torch::autograd::Node;
  using variable_list = torch::autograd::variable_list;
  using Options = GraphOptions;
  using Task = NodeTask;

  // Outputs of a recv node that the walk has reached for the first time, ascending.
  struct Reached {
    std::shared_ptr<RecvNode> node;
    std::vector<uint32_t> outputs;
  };
  // Outputs of a send node that an input depends on, found for the first time, ascending.
  struct Needed {
    std::shared_ptr<SendNode> node;
    std::vector<uint32_t> outputs;
  };
  // The results of a walk for other workers: senders get MARK, receivers NEEDED.
  struct Reach {
    std::vector<Reached> marked;
    std::vector<Needed> needed;

    void append(Reach more) {
      std::move(more.marked.begin(), more.marked.end(), std::back_inserter(marked));
      std::move(more.needed.begin(), more.needed.end(), std::back_inserter(needed));
    }
  };

  explicit LocalExecutor(const Options& options) : options_(options) {}

  // ---- Counting. Errors: FailedPrecondition when the graph leaves the context, naming both.

  // Tensors whose gradients are kept, leaves and others. FailedPrecondition once anything was marked.
  absl::Status add_inputs(const std::vector<at::Tensor>& inputs);
  // The pass begins at `roots`; once.
  absl::StatusOr<Reach> mark_roots(torch::autograd::edge_list roots);
  // Gradients for these outputs of `node` will arrive in one message. InvalidArgument for outputs it does not
  // have.
  absl::StatusOr<Reach> mark_outputs(const std::shared_ptr<SendNode>& node,
                                     const std::vector<uint32_t>& outputs);
  // An input elsewhere depends on these outputs of a message that was received here. InvalidArgument for what
  // was not marked.
  absl::StatusOr<Reach> need_outputs(uint64_t sender, uint64_t message, const std::vector<uint32_t>& outputs);
  // The number, since the last call, of nodes that will run and of messages and root gradients that will
  // arrive. With inputs_only it is known from begin_run() on.
  uint64_t take_counted() { return options_.inputs_only && !runs_ ? 0 : std::exchange(counted_, 0); }
  // Everything is marked. Does nothing the second time.
  void begin_run();

  // ---- Running. GradMode is off.

  absl::Status deliver_roots(variable_list gradients);
  // One for each output of the send node, undefined where none came; undefined ones may follow.
  // InvalidArgument when the message is not awaited, or its gradients do not fit the tensors that were sent.
  absl::Status deliver_message(uint64_t message, variable_list gradients);

  // The next node to run; nothing when none has all it waits for.
  std::optional<Task> next();
  // Runs the node and its hooks. Exceptions become the status, with the node's name.
  absl::Status run(Task& task) const { return run_node(task, options_); }
  // Hands the outputs on.
  void finished(Task& task);

 private:
  enum class Kind : uint8_t { kPlain, kRecv, kLeaf };

  // Where an edge that leads to a record comes from.
  struct From {
    enum class What : uint8_t { kRecord, kSent, kRoot } what;
    // The input of the record that it leads to.
    uint32_t input;
    // The record, or the message of the send node, that it comes from.
    uint32_t record;
    uint64_t message;
    // Its output, or the number of the root.
    uint32_t output;

    bool operator==(const From&) const = default;
  };
  // An edge that leads to a record, and its gradient while that is held.
  struct Incoming {
    From from;
    enum class State : uint8_t { kAwaited, kHeld, kAdded } state = State::kAwaited;
    at::Tensor gradient;
  };
  struct Record {
    Node* node = nullptr;
    uint32_t missing = 0;
    Kind kind = Kind::kPlain;
    // With inputs_only: an input depends on what it gives; an input is what it gets.
    bool needed = false;
    bool captured = false;
    // `incoming` is in the order of additions.
    bool ordered = false;
    // Empty when gradients are added as they arrive, but with inputs_only.
    absl::InlinedVector<Incoming, 1> incoming;
    torch::autograd::InputBuffer buffer{0};
    std::optional<Timeline::Place> place;
    // For a recv node: the outputs that the walk reached, and with inputs_only those that lead on to an
    // input.
    Flags marked;
    Flags needed_outputs;
  };
  struct Sent {
    std::shared_ptr<SendNode> node;
    Flags marked;
    // With inputs_only: an input depends on them.
    Flags needed;
    bool arrived = false;
    std::optional<Timeline::Place> place;
  };
  struct Ready {
    uint64_t sequence;
    uint64_t order;
    uint32_t record;
    bool operator<(const Ready& other) const {
      return sequence != other.sequence ? sequence < other.sequence : order > other.order;
    }
  };

  // Counts one more gradient along `edge`, which comes from `from`; walks on from its node if it is new.
  void count(const torch::autograd::Edge& edge, From from, Reach& reach);
  absl::Status walk(Reach& reach);
  // Whether a gradient for this input of the record has a use.
  bool is_live(const Record& record, uint32_t input) const;
  // Whether a gradient will come along the edge.
  bool is_live(const From& from) const;
  void need(const From& from, Reach& reach);
  // Follows edges back from what is newly needed.
  void follow_needs(Reach& reach);
  uint32_t visit(const torch::autograd::Edge& edge);
  // `from` as it was counted.
  void deliver(const torch::autograd::Edge& edge, at::Tensor gradient, const From& from);
  static void add(Record& record, uint32_t input, at::Tensor gradient);
  // Adds the gradient of `from`, and those that were held for it, unless it is held itself.
  void add_in_order(Record& record, const From& from, at::Tensor gradient);
  // Where the node that the edge comes from stands in the order of a single process.
  const Timeline::Place& place(const From& from);
  // Whether libtorch's engine adds a's gradient before b's; those of a record's first input come first.
  bool adds_before(const From& a, const From& b);

  const Options options_;

  torch::autograd::edge_list roots_;
  absl::flat_hash_map<uint64_t, Sent> sent_;
  absl::flat_hash_map<const Node*, uint32_t> index_;
  std::deque<Record> records_;
  // Nodes found by the walk under way whose own edges have not been followed.
  std::vector<uint32_t> unwalked_;
  // Edges that lead to what is needed, not yet followed back.
  std::vector<From> needs_;
  absl::flat_hash_map<std::pair<uint64_t, uint64_t>, uint32_t> recv_records_;
  bool runs_ = false;
  absl::flat_hash_map<const void*, std::size_t> reach_index_;
  absl::flat_hash_map<const Node*, Captures> captures_;
  std::vector<std::shared_ptr<Node>> captured_;
  uint64_t counted_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Ready> ready_;
};

}  // namespace gradwire::autograd
