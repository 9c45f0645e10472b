#include "gradwire/tests/autograd/reference.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/autograd/operations.h"

namespace programs {
namespace {

// A referenced value and its owner.
struct Held {
  int owner = 0;
  at::Tensor value;
};

struct LocalResults {
  std::vector<at::Tensor> values;
  std::vector<Held> refs;
};

// Returns a copy with the layout that a received tensor has: the layout of the sent one, if that has no gaps
// and no overlaps, else contiguous.
at::Tensor received(const at::Tensor& tensor) {
  // A sparse tensor cannot be copied with a memory format.
  if (tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense()) return tensor.clone();
  return tensor.clone(at::MemoryFormat::Contiguous);
}

class Run {
 public:
  Run(const Program& program, bool bounds) : program_(program), site_(program, bounds) {}

  LocalResults block(int index, std::vector<at::Tensor> arguments, std::vector<Held> refs) {
    const Block& block = program_.blocks[index];
    std::vector<at::Tensor> values = std::move(arguments);
    values.resize(block.values.size());
    refs.resize(block.refs.size());
    for (const Operation& operation : block.operations) {
      switch (operation.kind) {
        case Kind::kWait:
          break;
        case Kind::kMakeRef:
          refs[operation.ref_outputs[0]] = {block.agent, values[operation.inputs[0]]};
          break;
        case Kind::kFetch: {
          const Held& held = refs[operation.ref_inputs[0]];
          values[operation.outputs[0]] = held.owner == block.agent ? held.value : sent({held.value})[0];
          break;
        }
        case Kind::kCall:
        case Kind::kRemote: {
          std::vector<at::Tensor> arguments;
          std::vector<Held> passed;
          for (int input : operation.inputs) {
            arguments.push_back(input == kNothing ? at::Tensor() : values[input]);
          }
          for (int ref : operation.ref_inputs) passed.push_back(refs[ref]);
          LocalResults results = this->block(operation.block, sent(arguments), std::move(passed));
          if (operation.kind == Kind::kRemote) {
            refs[operation.ref_outputs[0]] = {program_.blocks[operation.block].agent, results.values[0]};
            break;
          }
          const std::vector<at::Tensor> answer = sent(results.values);
          for (std::size_t i = 0; i < answer.size(); ++i) values[operation.outputs[i]] = answer[i];
          for (std::size_t i = 0; i < results.refs.size(); ++i) {
            refs[operation.ref_outputs[i]] = std::move(results.refs[i]);
          }
          break;
        }
        default:
          run_operation(site_, block, operation, values);
      }
    }
    LocalResults results;
    for (int result : block.results) results.values.push_back(values[result]);
    for (int ref : block.ref_results) results.refs.push_back(refs[ref]);
    return results;
  }

  void pass(const Pass& pass, const std::vector<at::Tensor>& results, Traits* traits) {
    std::vector<at::Tensor> roots;
    for (const Root& root : pass.roots) roots.push_back(results.at(root.result));
    if (program_.backward_agent != program_.blocks[0].agent) roots = sent(roots);
    for (const auto& message : messages_) std::fill(message->begin(), message->end(), false);
    std::vector<at::Tensor> inputs;
    for (int leaf : pass.inputs) inputs.push_back(site_.leaves[leaf]);
    torch::autograd::backward(roots, root_gradients(site_, pass, roots), pass.retain_graph, pass.create_graph,
                              inputs);
    if (traits == nullptr) return;
    for (const auto& message : messages_) {
      const auto used = std::count(message->begin(), message->end(), true);
      traits->messages_used &= used > 0;
      traits->tensors_used &= used == static_cast<std::ptrdiff_t>(message->size());
    }
  }

  Outcome outcome() const {
    Outcome outcome;
    for (const at::Tensor& leaf : site_.leaves) outcome.gradients.push_back(leaf.grad());
    for (const HookCalls& calls : *site_.hooks)
      outcome.hook_calls.emplace_back(calls.defined, calls.undefined);
    return outcome;
  }

  const Site& site() const { return site_; }

 private:
  // Returns the tensors of a message as its receiver gets them: a clone, which has one autograd node for each
  // tensor. Also records in `messages_` to which of the tensors a gradient comes back.
  std::vector<at::Tensor> sent(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> arrived;
    auto message = std::make_shared<std::vector<bool>>();
    for (const at::Tensor& tensor : tensors) {
      arrived.push_back(tensor.defined() ? received(tensor) : at::Tensor());
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      const std::size_t index = message->size();
      message->push_back(false);
      arrived.back().register_hook([message, index](const at::Tensor& gradient) {
        (*message)[index] = true;
        return gradient.defined() ? received(gradient) : gradient;
      });
    }
    if (!message->empty()) messages_.push_back(std::move(message));
    return arrived;
  }

  const Program& program_;
  Site site_;
  std::vector<std::shared_ptr<std::vector<bool>>> messages_;
};

}  // namespace

Outcome run_in_one_process(const Program& program, Traits* traits) {
  try {
    Run run(program, /*bounds=*/false);
    const std::vector<at::Tensor> results = run.block(0, {}, {}).values;
    for (const Pass& pass : program.passes) run.pass(pass, results, traits);
    return run.outcome();
  } catch (const std::exception& error) {
    return {.error = absl::StrCat("in one process: ", error.what())};
  }
}

double largest_number(const Program& program) {
  Run run(program, /*bounds=*/true);
  const std::vector<at::Tensor> results = run.block(0, {}, {}).values;
  for (const Pass& pass : program.passes) run.pass(pass, results, nullptr);
  double largest = run.site().largest;
  for (const at::Tensor& leaf : run.site().leaves) {
    if (!leaf.grad().defined()) continue;
    largest = std::max(largest, leaf.grad().to_dense().abs().max().item<double>());
  }
  return largest;
}

}  // namespace programs
