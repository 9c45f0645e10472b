#include "gradwire/autograd/graph/node_task.h"

#include <ATen/ops/any.h>
#include <ATen/ops/isnan.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/device/streams.h"
#include "gradwire/device/to_cpu.h"

namespace gradwire::autograd {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

void validate_gradients(const edge_list& edges, variable_list& gradients, const std::string& who) {
  torch::autograd::validate_outputs(edges, gradients, [&who](const std::string& message) {
    return absl::StrCat(who, " returned an invalid gradient: ", message);
  });
}

namespace {

// Collects the text of warnings. libtorch reports the stack of a node only as a warning.
class Collector : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text_ += warning.msg(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Adds to the error the place in the forward where `node` was made: the stack that libtorch recorded if
// anomaly mode was on.
absl::Status with_forward_stack(Node& node, absl::Status status) {
  Collector collector;
  {
    c10::WarningUtils::WarningHandlerGuard guard(&collector);
    node.metadata()->print_stack(node.name());
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", collector.text()));
}

// Throws if a gradient contains NaN; the error names its position. The host waits for a device once for all
// gradients of the node, because only the host can throw.
void refuse_nan(const variable_list& gradients) {
  std::vector<at::Tensor> found(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor values = gradients[i].is_sparse() ? gradients[i]._values() : gradients[i];
    found[i] = at::any(at::isnan(values.detach()));
  }
  found = device::scalars_to_cpu(std::move(found));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined() && found[i].item<bool>()) {
      throw std::runtime_error(absl::StrCat("it returned nan values in its output ", i));
    }
  }
}

// Returns the output whose gradient a tensor hook gets. The class is identified by its name, because libtorch
// does not export the symbols that dynamic_cast would need.
std::optional<std::size_t> output_of(const torch::autograd::FunctionPreHook& hook) {
  using TensorHook = torch::autograd::CppFunctionTensorPreHook;
  if (std::strcmp(typeid(hook).name(), "N5torch8autograd24CppFunctionTensorPreHookE") != 0)
    return std::nullopt;
  return static_cast<const TensorHook&>(hook).value_idx_;
}

// Runs the tensor hooks of a node. They run for every gradient that arrives, but hooks of the node itself run
// only if the node runs.
void call_tensor_hooks(Node& node, NodeTask& task, const GraphOptions& options) {
  // Outputs of a message that are not used have no gradient in this pass.
  const auto is_live = [&task](std::size_t output) {
    return task.live.empty() || (output < task.live.size() && task.live[output]);
  };
  for (const auto& hook : node.tensor_pre_hooks()) {
    const std::optional<std::size_t> output = output_of(*hook);
    if (output && !is_live(*output)) continue;
    task.inputs = (*hook)(task.inputs);
  }
  if (node.retains_grad_hooks().empty()) return;
  std::unique_lock<Mutex> lock;
  if (options.retained_gradients != nullptr) lock = std::unique_lock(*options.retained_gradients);
  for (const auto& [output, hook] : node.retains_grad_hooks()) {
    if (is_live(output)) task.inputs = (*hook)(task.inputs);
  }
}

// Runs the node itself and its post-hooks.
void apply(Node& node, NodeTask& task, const GraphOptions& options) {
  // Without retain_graph the node frees its saved tensors as soon as it has run. The pass then needs less
  // and less memory.
  if (!options.retain_graph) node.will_release_variables();
  const bool has_post_hooks = !node.post_hooks().empty();
  if (has_post_hooks) {
    task.outputs = node(variable_list(task.inputs));
  } else {
    task.outputs = node(std::move(task.inputs));
  }
  validate_gradients(node.next_edges(), task.outputs, node.name());
  if (options.check_nan) refuse_nan(task.outputs);
  for (const auto& hook : node.post_hooks()) task.outputs = (*hook)(task.outputs, task.inputs);
  task.inputs.clear();
  if (!options.retain_graph) node.release_variables();
}

// Makes `stream` wait for an input. InputBuffer leaves out an event that the node's stream does not need.
void wait_for_input(const TaskStreams& streams, std::size_t input, const c10::Stream& stream) {
  if (stream == *streams.ready[input]) return;
  if (streams.events[input]) return streams.events[input]->block(stream);
  device::order(*streams.ready[input], stream);
}

// Makes the node's stream wait for the inputs that are ready on other streams. InputBuffer has recorded that
// the node's stream uses their memory.
void wait_for_inputs(const NodeTask& task) {
  const TaskStreams& streams = *task.streams;
  for (std::size_t i = 0; i < streams.ready.size(); ++i) {
    if (!streams.ready[i] || !task.inputs[i].defined()) continue;
    const c10::Device device = task.inputs[i].device();
    if (streams.stream) wait_for_input(streams, i, *streams.stream);
    if (streams.stream && streams.stream->device() == device) continue;
    // Without a stream of its own the node runs on the current streams. With one, its hooks may still compute
    // with the input on the input's own device.
    const c10::Stream current = device::current_stream(device);
    wait_for_input(streams, i, current);
    device::record_use(task.inputs[i], current);
  }
}

// The caller ships and keeps gradients on the current stream of each gradient's device. That is the stream of
// the node for one device only, and the gradients are ready on this stream.
void make_results_ready(const NodeTask& task) {
  if (!task.streams->stream) return;
  const c10::Stream& stream = *task.streams->stream;
  for (const auto& [tensor, gradient] : task.kept) device::ready_on_current_stream(gradient, stream);
  if (task.recv == nullptr) return;
  for (const at::Tensor& gradient : task.outputs) device::ready_on_current_stream(gradient, stream);
}

// The order is that of libtorch's engine:
// 1. Hooks of tensors change the gradients that arrive, also for a node that does not run.
// 2. The gradients of requested tensors (captures) are kept.
// 3. Pre-hooks of the node.
// 4. The node itself. The gradients of a recv node or of a leaf are only handed to the caller, which ships
//    or keeps them; applying the node of a leaf would write to `.grad`.
// 5. Post-hooks of the node.
void run_in_order(Node& node, NodeTask& task, const GraphOptions& options) {
  call_tensor_hooks(node, task, options);
  if (task.captures != nullptr) {
    for (const auto& [input, tensor] : *task.captures) task.kept.emplace_back(tensor, task.inputs[input]);
  }
  if (task.leaf == nullptr && !task.runs) {
    task.inputs.clear();
    return;
  }
  for (const auto& hook : node.pre_hooks()) task.inputs = (*hook)(task.inputs);
  if (task.recv != nullptr) {
    for (const auto& hook : node.post_hooks()) (*hook)({}, task.inputs);
    task.outputs = std::move(task.inputs);
    for (std::size_t i = 0; i < task.shipped.size(); ++i) {
      if (!task.shipped[i]) task.outputs[i] = at::Tensor();
    }
    return;
  }
  if (task.leaf != nullptr) {
    for (const auto& hook : node.post_hooks()) (*hook)({}, task.inputs);
    if (!options.inputs_only) task.kept.emplace_back(*task.leaf, std::move(task.inputs[0]));
    task.inputs.clear();
    return;
  }
  apply(node, task, options);
}

// The node, its hooks and everything that they compute use the node's stream, as in libtorch's engine.
void run_on_stream(Node& node, NodeTask& task, const GraphOptions& options) {
  const c10::OptionalStreamGuard current(task.streams->stream);
  wait_for_inputs(task);
  run_in_order(node, task, options);
  make_results_ready(task);
}

}  // namespace

absl::Status run_node(NodeTask& task, const GraphOptions& options) {
  Node& node = *task.node;
  try {
    task.streams == nullptr ? run_in_order(node, task, options) : run_on_stream(node, task, options);
  } catch (...) {
    absl::Status status = status_from_exception(std::current_exception());
    if (options.anomaly) status = with_forward_stack(node, std::move(status));
    return with_context(status, absl::StrCat("in the backward of ", node.name()));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::autograd
