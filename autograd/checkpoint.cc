#include "gradwire/autograd/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "gradwire/autograd/autograd.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/pass/backward_apart.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/device/streams.h"

namespace gradwire::autograd {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// The node of a checkpointed call. It saves the inputs instead of everything that the function computes. Its
// backward runs the function again, with recording on, and then a backward of its own over that small graph.
class CheckpointNode : public torch::autograd::Node {
 public:
  CheckpointNode(torch::autograd::edge_list edges, Function function, const std::vector<at::Tensor>& inputs)
      : Node(std::move(edges)), function_(std::move(function)) {
    for (const at::Tensor& input : inputs) inputs_.emplace_back(input, /*is_output=*/false);
  }

  // The function has run. Its second run comes after what the current streams have now.
  void has_run() { first_run_ = record_stream_fence(); }

  std::string name() const override { return "GradwireCheckpoint"; }

  void release_variables() override {
    for (SavedVariable& input : inputs_) input.reset_data();
    released_ = true;
  }

  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled())
      throw std::runtime_error("checkpoint() does not support gradients of gradients (create_graph)");
    if (released_) {
      throw std::runtime_error(
          "cannot run the backward of checkpoint() a second time: the first one freed its inputs; set "
          "retain_graph in the first one");
    }
    // The inputs become new leaves, so that the inner backward stops at them and does not run the outer
    // graph.
    // The stream of this node is that of an output. On other devices the function runs on the current
    // streams.
    if (first_run_ != nullptr) throw_if_error(first_run_->wait());
    std::vector<at::Tensor> inputs;
    for (const SavedVariable& saved : inputs_) {
      const at::Tensor input = saved.unpack();
      // The saved inputs may be freed before these streams have read them.
      if (device::has_streams(input)) device::record_use(input, device::current_stream(input.device()));
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad()) : input);
    }
    std::vector<at::Tensor> outputs;
    {
      at::AutoGradMode record(true);
      outputs = function_(inputs);
    }
    if (outputs.size() != gradients.size())
      throw std::runtime_error("the function of checkpoint() returned " + std::to_string(outputs.size()) +
                               " tensors the second time, expected " + std::to_string(gradients.size()) +
                               " as the first time");
    std::vector<at::Tensor> roots, root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    variable_list results(inputs.size());
    if (!roots.empty()) run(roots, root_gradients, inputs, results);
    order_results(results);
    return results;
  }

 private:
  // Writes the gradients of the inputs to `results`. Inside an autograd context the inner backward is a pass
  // of that context too: the function may have called other workers, and its parameters' gradients belong to
  // the context.
  static void run(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& root_gradients,
                  const std::vector<at::Tensor>& inputs, variable_list& results) {
    const auto active = ActiveContextSlot::get();
    // The context may have ended during the pass. The gradients must not go into `.grad` then:
    // backward_apart() is called and throws. In libtorch's own backward they must. Only libtorch's engine has
    // a graph task, which distinguishes the two.
    const bool in_pass = torch::autograd::get_current_graph_task_id() == -1;
    if (active == nullptr || (active->ended() && !in_pass)) {
      torch::autograd::backward(roots, root_gradients);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].defined() && inputs[i].requires_grad()) results[i] = inputs[i].grad();
      }
      return;
    }
    std::vector<at::Tensor> apart;
    for (const at::Tensor& input : inputs) {
      if (input.defined() && input.requires_grad()) apart.push_back(input);
    }
    std::vector<at::Tensor> gradients = backward_apart(active->id, roots, root_gradients, apart);
    auto next = gradients.begin();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined() && inputs[i].requires_grad()) results[i] = std::move(*next++);
    }
  }

  // The results must be ready on the stream of this node, also those on another device. The inner pass has
  // made them ready on the current streams of their own devices.
  void order_results(const variable_list& results) {
    for (const at::Tensor& result : results) {
      if (!device::has_streams(result)) continue;
      if (const auto own = stream()) device::order(device::current_stream(result.device()), *own);
    }
  }

  const Function function_;
  std::vector<SavedVariable> inputs_;
  StreamFencePtr first_run_;
  bool released_ = false;
};

}  // namespace

std::vector<at::Tensor> checkpoint(Function function, std::vector<at::Tensor> inputs) {
  std::vector<at::Tensor> outputs;
  {
    at::AutoGradMode record(false);
    outputs = function(inputs);
  }
  if (!at::GradMode::is_enabled()) return outputs;
  bool any = false;
  for (const at::Tensor& input : inputs) any |= input.defined() && input.requires_grad();
  if (!any) return outputs;
  auto node = std::shared_ptr<CheckpointNode>(
      new CheckpointNode(torch::autograd::collect_next_edges(inputs), std::move(function), inputs),
      torch::autograd::deleteNode);
  node->has_run();
  for (at::Tensor& output : outputs) {
    // Without detach() a result that is an input, or a view of one, would change the history of the input.
    if (output.defined()) output = output.detach();
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace gradwire::autograd
