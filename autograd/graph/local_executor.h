#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/autograd/graph/graph_nodes.h"
#include "gradwire/autograd/graph/node_task.h"
#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/device/streams.h"

namespace gradwire::autograd {

// The messages of a pass on one worker, for observers: those that it has sent and whose gradients have not
// arrived, and those that it has received and that its graph reaches, by their sender and number.
class GraphMessages {
 public:
  // Nothing is known.
  GraphMessages() = default;
  // Keeps at most `most` of each kind. `sent`: a map whose values have the SendNode `node` and the flag
  // `arrived`, for the gradients. `received`: a map whose keys are received messages.
  template <class SentMap, class ReceivedMap>
  GraphMessages(std::size_t most, const SentMap& sent, const ReceivedMap& received)
      : all_reached_(received.size() <= most) {
    for (const auto& [number, each] : sent) {
      if (!each.arrived && awaited_.size() < most) awaited_.push_back(each.node);
    }
    for (const auto& [message, each] : received) {
      if (reached_.size() < most) reached_.push_back(message);
    }
  }

  const std::vector<std::shared_ptr<const SendNode>>& awaited() const { return awaited_; }
  const std::vector<std::pair<uint64_t, uint64_t>>& reached() const { return reached_; }
  // Whether reached() has all of them.
  bool all_reached() const { return all_reached_; }

 private:
  std::vector<std::shared_ptr<const SendNode>> awaited_;
  std::vector<std::pair<uint64_t, uint64_t>> reached_;
  bool all_reached_ = false;
};

// The gradients that have arrived at one node in a pass, added up for each input. On an accelerator the
// additions follow the rules of libtorch's engine: they run on the stream of the node, which waits for the
// streams of the gradients with events. Not thread-safe. The node must outlive this object.
class NodeInputs {
 public:
  NodeInputs() = default;
  explicit NodeInputs(torch::autograd::Node& node);

  // The stream on which libtorch's engine runs the node, if one of its inputs is on an accelerator.
  const std::optional<c10::Stream>& stream() const { return stream_; }
  // Adds a gradient. `ready`: the stream on which it is ready (ready_stream()). Calls no code of a device for
  // a gradient on the CPU. Throws what libtorch throws.
  void add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& ready);
  // Moves the sums, and what the node has to wait for before it uses them, into the task.
  void move_to(NodeTask& task);

 private:
  torch::autograd::Node* node_ = nullptr;
  std::optional<c10::Stream> stream_;
  torch::autograd::InputBuffer buffer_{0};
};

// Returns the stream on which a gradient is ready that the calling thread delivers now; nothing if it has no
// streams. `producer`: the stream of the node that computed it, if the node has one.
std::optional<c10::Stream> ready_stream(const at::Tensor& gradient,
                                        const std::optional<c10::Stream>& producer);

// Runs one worker's graph in one backward pass: first counts the gradients that will arrive at each node,
// then runs each node when all of its gradients have arrived. Replaces libtorch's engine, which can only run
// a whole graph and cannot be extended. It keeps the engine's order (the node created last runs first) and
// its treatment of hooks.
//
// Gradients for the same input of a node are added in the order in which libtorch's engine would add them,
// the youngest producer first. The sums are therefore equal bit for bit for any order of arrival. A gradient
// that arrives too early is held.
//
// Gradients on an accelerator follow the rules of libtorch's engine. A node runs on the stream of its
// forward. That stream first waits for gradients that are ready on another stream, with events: the host
// never waits. A gradient that is delivered from outside must be ready on the current stream of the thread
// that delivers it. So the pass begins after the work of that stream. When the pass has ended, streams() has
// the streams that the next users of its results must wait for. A graph on the CPU calls no code of a device.
//
// Order of calls: mark_roots() and mark_outputs(); then the deliver functions, and for each task next(),
// run() and finished(). Only run() calls user code (nodes and hooks); all other methods are quick. Not
// thread-safe, but run() uses its task only, so a lock that guards the other methods need not be held. Keeps
// the graph alive.
//
// With Options::inputs_only only those nodes run that a gradient of the inputs depends on. They are known
// when the whole graph has been marked: need_outputs() adds what the other workers have found, and
// begin_run() ends the marking.
class LocalExecutor {
 public:
  using Node = torch::autograd::Node;
  using variable_list = torch::autograd::variable_list;
  using Options = GraphOptions;
  using Task = NodeTask;

  // Outputs of a recv node that a walk has reached for the first time, ascending.
  struct Reached {
    std::shared_ptr<RecvNode> node;
    std::vector<uint32_t> outputs;
  };
  // Outputs of a send node that an input depends on, found for the first time, ascending.
  struct Needed {
    std::shared_ptr<SendNode> node;
    std::vector<uint32_t> outputs;
  };
  // The results of a walk for other workers: senders of `marked` get a MARK, receivers of `needed` a NEEDED.
  struct Reach {
    std::vector<Reached> marked;
    std::vector<Needed> needed;

    void append(Reach more) {
      std::move(more.marked.begin(), more.marked.end(), std::back_inserter(marked));
      std::move(more.needed.begin(), more.needed.end(), std::back_inserter(needed));
    }
  };

  explicit LocalExecutor(const Options& options) : options_(options) {}

  // ---- Counting. Errors: FailedPrecondition if the graph leaves the context; the error names both contexts.

  // Adds tensors whose gradients are kept, leaves or not. FailedPrecondition after the marking has begun.
  absl::Status add_inputs(const std::vector<at::Tensor>& inputs);
  // Starts the pass at `roots`. May be called once.
  absl::StatusOr<Reach> mark_roots(torch::autograd::edge_list roots);
  // Marks outputs of `node`, whose gradients will arrive in one message. InvalidArgument for a wrong output.
  absl::StatusOr<Reach> mark_outputs(const std::shared_ptr<SendNode>& node,
                                     const std::vector<uint32_t>& outputs);
  // Records that an input on another worker depends on these outputs of a message that was received here.
  // InvalidArgument for outputs that were not marked.
  absl::StatusOr<Reach> need_outputs(uint64_t sender, uint64_t message, const std::vector<uint32_t>& outputs);
  // Returns the number of expected events (nodes that run, messages and root gradients that arrive) that were
  // counted since the last call. With inputs_only returns 0 before begin_run().
  uint64_t take_counted() { return options_.inputs_only && !runs_ ? 0 : std::exchange(counted_, 0); }
  // Ends the marking. Later calls do nothing.
  void begin_run();

  // ---- Running. GradMode is off.

  absl::Status deliver_roots(variable_list gradients);
  // One gradient for each output of the send node, undefined if none came; more undefined ones may follow.
  // InvalidArgument if the message is not expected or its gradients do not fit the tensors that were sent.
  absl::Status deliver_message(uint64_t message, variable_list gradients);

  // Returns the next node to run; nullopt if no node has all of its gradients.
  std::optional<Task> next();
  // Runs the node and its hooks. An exception becomes the status, with the node's name.
  absl::Status run(Task& task) const { return run_node(task, options_); }
  // Delivers the outputs of the node to the next nodes. Must be called on the thread that has called run().
  void finished(Task& task);
  // For observers: at most `most` messages of each kind.
  GraphMessages messages(std::size_t most) const { return {most, sent_, recv_records_}; }
  // Returns the streams on which nodes have run so far.
  const device::StreamSet& streams() const { return streams_; }

 private:
  enum class Kind : uint8_t { kPlain, kRecv, kLeaf };

  // The origin of an edge that leads to a record.
  struct From {
    enum class What : uint8_t { kRecord, kSent, kRoot } what;
    // The input of the record that the edge leads to.
    uint32_t input;
    // The record (kRecord), or the message of the send node (kSent), that the edge comes from.
    uint32_t record;
    uint64_t message;
    // The output of that node, or the number of the root.
    uint32_t output;

    bool operator==(const From&) const = default;
  };
  // An edge that leads to a record, and its gradient while that is held.
  struct Incoming {
    From from;
    enum class State : uint8_t { kAwaited, kHeld, kAdded } state = State::kAwaited;
    at::Tensor gradient;
    // The stream on which a held gradient is ready, if it has streams.
    std::optional<c10::Stream> ready = std::nullopt;
  };
  struct Record {
    Node* node = nullptr;
    // Number of gradients that have not arrived.
    uint32_t missing = 0;
    Kind kind = Kind::kPlain;
    // With inputs_only: an input depends on the outputs of the node; the gradient of an input arrives here.
    bool needed = false;
    bool captured = false;
    // `incoming` is sorted by the order of additions.
    bool ordered = false;
    // Not used if gradients are added as they arrive, except with inputs_only.
    absl::InlinedVector<Incoming, 1> incoming;
    NodeInputs inputs;
    std::optional<Timeline::Position> place;
    // For a recv node: the outputs that a walk reached, and with inputs_only those that lead to an input.
    Flags marked;
    Flags needed_outputs;
  };
  struct Sent {
    std::shared_ptr<SendNode> node;
    Flags marked;
    // With inputs_only: the outputs that the gradient of an input depends on.
    Flags needed;
    bool arrived = false;
    std::optional<Timeline::Position> place;
  };
  struct Ready {
    uint64_t sequence;
    uint64_t order;
    uint32_t record;
    bool operator<(const Ready& other) const {
      return sequence != other.sequence ? sequence < other.sequence : order > other.order;
    }
  };

  // Counts one more gradient along `edge`, whose origin is `from`. Adds a new node to `unwalked_`.
  void count(const torch::autograd::Edge& edge, From from, Reach& reach);
  // Follows the edges of all nodes in `unwalked_`.
  absl::Status walk(Reach& reach);
  // With inputs_only: whether a gradient for this input of the record is used.
  bool is_live(const Record& record, uint32_t input) const;
  // With inputs_only: whether a gradient will come along the edge.
  bool is_live(const From& from) const;
  void need(const From& from, Reach& reach);
  // Follows the edges in `needs_` back towards the roots.
  void follow_needs(Reach& reach);
  // Returns the index of the record of the edge's node, new if necessary.
  uint32_t visit(const torch::autograd::Edge& edge);
  // `from` must be equal to the origin that was counted.
  void deliver(const torch::autograd::Edge& edge, at::Tensor gradient, const From& from);
  // Adds the gradient and those held behind it, or holds it if one before it has not arrived.
  void add_in_order(Record& record, const From& from, at::Tensor gradient,
                    const std::optional<c10::Stream>& ready);
  // Returns the position, in the order of a single process, of the node that the edge comes from.
  const Timeline::Position& place(const From& from);
  // Whether libtorch's engine adds a's gradient before b's; gradients of a lower input come first.
  bool adds_before(const From& a, const From& b);

  const Options options_;

  torch::autograd::edge_list roots_;
  HashMap<uint64_t, Sent> sent_;
  HashMap<const Node*, uint32_t> index_;
  std::deque<Record> records_;
  // Records whose edges the current walk has not followed.
  std::vector<uint32_t> unwalked_;
  // Origins of edges that lead to a needed gradient and have not been followed back.
  std::vector<From> needs_;
  // The records of recv nodes, by the sender and number of the message.
  HashMap<std::pair<uint64_t, uint64_t>, uint32_t> recv_records_;
  // begin_run() was called.
  bool runs_ = false;
  // The index in Reach::marked of each recv node that the current walk has reached.
  HashMap<const void*, std::size_t> reach_index_;
  // The inputs, by the node that their gradients arrive at; and these nodes, which are kept alive.
  HashMap<const Node*, Captures> captures_;
  std::vector<std::shared_ptr<Node>> captured_;
  uint64_t counted_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Ready> ready_;
  device::StreamSet streams_;
};

}  // namespace gradwire::autograd
