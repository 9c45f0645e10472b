#include "gradwire/autograd/graph/node_task.h"

#include <ATen/ops/any.h>
#include <ATen/ops/isnan.h>
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

// Throws if a gradient contains NaN; the error names its position.
void refuse_nan(const variable_list& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const at::Tensor values = gradients[i].is_sparse() ? gradients[i]._values() : gradients[i];
    if (at::any(at::isnan(values.detach())).item<bool>()) {
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

}  // namespace

// The order is that of libtorch's engine:
// 1. Hooks of tensors change the gradients that arrive, also for a node that does not run.
// 2. The gradients of requested tensors (captures) are kept.
// 3. Pre-hooks of the node.
// 4. The node itself. The gradients of a recv node or of a leaf are only handed to the caller, which ships
//    or keeps them; applying the node of a leaf would write to `.grad`.
// 5. Post-hooks of the node.
absl::Status run_node(NodeTask& task, const GraphOptions& options) {
  Node& node = *task.node;
  try {
    call_tensor_hooks(node, task, options);
    if (task.captures != nullptr) {
      for (const auto& [input, tensor] : *task.captures) task.kept.emplace_back(tensor, task.inputs[input]);
    }
    if (task.leaf == nullptr && !task.runs) {
      task.inputs.clear();
      return absl::OkStatus();
    }
    for (const auto& hook : node.pre_hooks()) task.inputs = (*hook)(task.inputs);
    if (task.recv != nullptr) {
      for (const auto& hook : node.post_hooks()) (*hook)({}, task.inputs);
      task.outputs = std::move(task.inputs);
      for (std::size_t i = 0; i < task.shipped.size(); ++i) {
        if (!task.shipped[i]) task.outputs[i] = at::Tensor();
      }
      return absl::OkStatus();
    }
    if (task.leaf != nullptr) {
      for (const auto& hook : node.post_hooks()) (*hook)({}, task.inputs);
      if (!options.inputs_only) task.kept.emplace_back(*task.leaf, std::move(task.inputs[0]));
      task.inputs.clear();
      return absl::OkStatus();
    }
    apply(node, task, options);
  } catch (...) {
    absl::Status status = status_from_exception(std::current_exception());
    if (options.anomaly) status = with_forward_stack(node, std::move(status));
    return with_context(status, absl::StrCat("in the backward of ", node.name()));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::autograd
