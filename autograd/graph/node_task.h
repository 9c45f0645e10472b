#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/autograd/graph/graph_nodes.h"
#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// Options for running the graph of one worker in a pass.
struct GraphOptions {
  rpc::Id context;
  // This worker's incarnation.
  uint64_t self = 0;
  // Nodes keep what they saved for another pass.
  bool retain_graph = false;
  // Adds gradients as they arrive, and holds none.
  bool sum_as_they_arrive = false;
  // Decides which of two nodes is older. If nullptr, nodes are ordered by thread and sequence number.
  std::shared_ptr<const Timeline> timeline = nullptr;
  // Only gradients of the tensors of add_inputs() are kept, and only nodes that they depend on are run.
  bool inputs_only = false;
  // The error of a node says where in the forward the node was made, if libtorch has recorded it (anomaly
  // mode).
  bool anomaly = false;
  // A gradient that is NaN is an error.
  bool check_nan = false;
  // Held while retain_grad() hooks run: a tensor that several passes use has one `.grad`.
  Mutex* retained_gradients = nullptr;
};

// One flag for each input or output of a node. Few nodes have more than fit inline.
using Flags = absl::InlinedVector<bool, 16>;

// Pairs of an input of a node and the tensor whose gradient arrives there.
using Captures = std::vector<std::pair<uint32_t, at::Tensor>>;

// The streams of a task that has to do with an accelerator. The lists have one element for each input of the
// node, or are empty if no input has streams.
struct TaskStreams {
  // The stream on which the node runs; without one it runs on the current streams of the thread.
  std::optional<c10::Stream> stream;
  // The stream on which an input is ready. Another stream must wait for the event before it uses the input.
  std::vector<std::optional<c10::Stream>> ready;
  std::vector<std::optional<c10::Event>> events;
};

// A node that is ready to run: all of its gradients have arrived.
struct NodeTask {
  uint32_t record = 0;
  torch::autograd::Node* node = nullptr;
  // The node if it is a recv node, otherwise nullptr.
  RecvNode* recv = nullptr;
  // The tensor of the node if it accumulates the gradient of a leaf, otherwise nullptr.
  const at::Tensor* leaf = nullptr;
  // The tensors whose gradients are kept; may be nullptr.
  const Captures* captures = nullptr;
  // nullptr if all inputs are on the CPU.
  std::unique_ptr<TaskStreams> streams;
  // False if the gradients are only kept and the node does not run, because no other input depends on it.
  bool runs = true;
  // For a recv node: which gradients are passed to hooks, and which are shipped.
  Flags live;
  Flags shipped;
  torch::autograd::variable_list inputs;
  // After run(): the node's outputs; for a recv node the gradients to ship, undefined where not marked.
  torch::autograd::variable_list outputs;
  // After run(): pairs (tensor, gradient) to keep, for the leaf and for requested tensors.
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;

  // Returns the stream on which the node runs, if it has one. After run(), `kept` and the gradients to ship
  // are ready on this stream, and on the current streams of the thread for the other devices.
  std::optional<c10::Stream> stream() const { return streams == nullptr ? std::nullopt : streams->stream; }
};

// Checks that `gradients`, which the node with the name `who` returned, fit `edges`. Throws what libtorch
// throws if they do not.
void validate_gradients(const torch::autograd::edge_list& edges, torch::autograd::variable_list& gradients,
                        const std::string& who);

// Runs the node and its hooks, which are user code, on the task's stream. The host does not wait for a
// device, unless the node or a hook does. An exception becomes the status, with the node's name. Calls for
// different tasks may run at the same time.
absl::Status run_node(NodeTask& task, const GraphOptions& options);

}  // namespace gradwire::autograd
