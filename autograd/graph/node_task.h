#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "gradwire/autograd/graph/recv_node.h"
#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// How the graph of one worker is run in a pass.
struct GraphOptions {
  rpc::Id context;
  // This worker's incarnation.
  uint64_t self = 0;
  // Nodes keep what they saved for another pass.
  bool retain_graph = false;
  // Adds gradients as they arrive, and holds none.
  bool sum_as_they_arrive = false;
  // Decides which of two nodes is older. nullptr: as their thread numbered them.
  std::shared_ptr<const Timeline> timeline = nullptr;
  // Only gradients of add_inputs' tensors are kept, and only nodes that they depend on are run.
  bool inputs_only = false;
  // Where a node fails, says where it was made, if libtorch knows (anomaly mode); and whether a gradient that
  // is not a number is a failure.
  bool anomaly = false;
  bool check_nan = false;
  // Held while retain_grad() hooks run: a tensor that several passes use has one `.grad`.
  Mutex* retained_gradients = nullptr;
};

// One for each input or output of a node; few nodes have more than fit here.
using Flags = absl::InlinedVector<bool, 16>;

using Captures = std::vector<std::pair<uint32_t, at::Tensor>>;

// A node whose gradients have arrived, to be run.
struct NodeTask {
  uint32_t record = 0;
  torch::autograd::Node* node = nullptr;
  // Set when the node is one of these.
  RecvNode* recv = nullptr;
  const at::Tensor* leaf = nullptr;
  // Tensors whose gradients are kept, and of which input each is; may be nullptr.
  const Captures* captures = nullptr;
  // False where gradients are only looked at, for an input that nothing else depends on.
  bool runs = true;
  // For a recv node: the gradients that hooks see, and those that are shipped.
  Flags live;
  Flags shipped;
  torch::autograd::variable_list inputs;
  // After run(): the node's outputs; for a recv node the gradients to ship, undefined where not marked.
  torch::autograd::variable_list outputs;
  // After run(): gradients to keep: of the leaf, and of tensors asked for.
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
};

// Throws what libtorch throws where `gradients` of `who`, a node, do not fit `edges`.
void validate_gradients(const torch::autograd::edge_list& edges, torch::autograd::variable_list& gradients,
                        const std::string& who);

// Runs the node and its hooks, which are user code. Exceptions become the status, with the node's name.
// Thread-safe for different tasks.
absl::Status run_node(NodeTask& task, const GraphOptions& options);

}  // namespace gradwire::autograd
