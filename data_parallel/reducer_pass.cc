// The part of Reducer that the hooks call in a backward pass.

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/reducer.h"

namespace gradwire::collectives {
namespace {

using torch::autograd::Node;

// libtorch's engine has numbered the graph that it runs on this thread.
bool in_torch_engine() { return torch::autograd::get_current_graph_task_id() >= 0; }

void refuse_create_graph() {
  if (!c10::GradMode::is_enabled()) return;
  throw Error(
      absl::InvalidArgumentError("backward with create_graph through DistributedDataParallel: averaged "
                                 "gradients cannot be differentiated. "
                                 "torch::autograd::grad() of the inputs can"));
}

absl::flat_hash_set<const Node*> nodes_below(const std::vector<std::weak_ptr<Node>>& outputs) {
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  // Somebody runs the graph, so that it stays.
  for (const std::weak_ptr<Node>& output : outputs) visit(output.lock().get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

}  // namespace

void Reducer::accumulated(std::size_t index) {
  if (!in_torch_engine()) return;
  bool last = false;
  {
    MutexLock lock(mutex_);
    if (no_sync_ > 0) {
      parameters_[index].used_locally = true;
      return;
    }
    check_usable_locked();
    refuse_create_graph();
    if (!state_.started()) begin_pass_locked(/*in_sink=*/false);
    mark_locked(index);
    buckets_.bring_grad(index);
    start_reductions_locked();
    last = state_.all_taken();
  }
  if (last) torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_pass(); });
}

torch::autograd::variable_list Reducer::before_accumulation(std::size_t index,
                                                            const torch::autograd::variable_list& gradients) {
  if (in_torch_engine()) return gradients;
  std::unique_ptr<GradientSink> sink;
  bool last = false;
  {
    MutexLock lock(mutex_);
    if (no_sync_ > 0) return gradients;
    check_usable_locked();
    refuse_create_graph();
    sink = find_gradient_sink();
    if (sink == nullptr) {
      throw Error(
          absl::FailedPreconditionError("a backward pass that libtorch's engine does not run reached a "
                                        "replicated parameter, and nobody says where its "
                                        "gradients go: is //autograd linked?"));
    }
    if (!state_.started()) {
      before_ = sink->get(buckets_.leaves());
      begin_pass_locked(/*in_sink=*/true);
    }
    mark_locked(index);
    buckets_.bring_sum(index, gradients[0], before_[index]);
    start_reductions_locked();
    last = state_.all_taken();
  }
  if (last) finish_in_sink(*sink);
  // The sink gets the average, when it is there.
  return {at::Tensor()};
}

void Reducer::begin_pass_locked(bool in_sink) {
  state_.start();
  reductions_.clear();
  if (in_sink) {
    // The buckets are about to be overwritten, and `.grad` stays as it is.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (buckets_.holds_grad(i)) buckets_.leaves()[i].mutable_grad() = buckets_.view(i).clone();
    }
  }
  if (options_.find_unused_parameters) leave_out_unused_locked(in_sink);
}

std::vector<bool> Reducer::reached_locked(bool in_sink) {
  std::vector<bool> reached(parameters_.size());
  if (in_sink) {
    const auto nodes = nodes_below(outputs_);
    for (std::size_t i = 0; i < reached.size(); ++i)
      reached[i] = nodes.contains(parameters_[i].accumulator.get());
  } else {
    const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
    for (std::size_t i = 0; i < reached.size(); ++i) {
      reached[i] = nodes == nullptr || nodes->count(parameters_[i].accumulator.get()) != 0;
    }
  }
  return reached;
}

void Reducer::leave_out_unused_locked(bool in_sink) {
  const std::vector<bool> reached = reached_locked(in_sink);
  at::Tensor used = at::empty({static_cast<int64_t>(parameters_.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool has_sum = in_sink ? before_[i].defined() : parameter.used_locally;
    used.data_ptr<int32_t>()[i] = reached[i] || has_sum ? 1 : 0;
    parameter.unused = !reached[i];
    if (reached[i]) continue;
    // Takes part with what had been accumulated before, for the sake of the ranks that use it.
    if (in_sink) {
      buckets_.bring_sum(i, at::Tensor(), before_[i]);
    } else {
      const at::Tensor& grad = buckets_.leaves()[i].grad();
      if (!buckets_.holds_grad(i)) {
        buckets_.bring_sum(i, grad, at::Tensor());
      } else if (!has_sum) {
        parameter.saved = grad.clone();
      }
    }
    state_.mark(i, /*by_gradient=*/false);
  }
  // The first reduction of the pass on every rank.
  used_ = used.to(buckets_.device());
  reductions_.push_back(options_.group->all_reduce_async(used_, ReduceOp::kMax));
}

void Reducer::mark_locked(std::size_t index) {
  if (state_.mark(index)) return;
  const std::string& name = buckets_.name(index);
  throw Error(absl::FailedPreconditionError(
      parameters_[index].unused
          ? absl::StrCat("the parameter \"", name,
                         "\" got a gradient, though forward's outputs do not depend on it")
          : absl::StrCat("the parameter \"", name,
                         "\" got a second gradient while the reduction of others had not been finished: a "
                         "backward pass for a part of the outputs is followed by another")));
}

// With the lock: the order in which they start is the same on all ranks. Starting returns at once.
void Reducer::start_reductions_locked() {
  while (const std::optional<std::size_t> bucket = state_.take_complete()) {
    reductions_.push_back(options_.group->all_reduce_async(buckets_.flat(*bucket), ReduceOp::kAvg));
  }
}

void Reducer::wait_for_reductions() {
  std::vector<std::shared_ptr<Work>> reductions;
  {
    MutexLock lock(mutex_);
    reductions.swap(reductions_);
  }
  try {
    for (const std::shared_ptr<Work>& reduction : reductions) reduction->wait();
  } catch (const Error& error) {
    MutexLock lock(mutex_);
    if (broken_.ok()) broken_ = error.status();
    throw Error(with_context(error.status(), "averaging the gradients of DistributedDataParallel"));
  }
}

std::vector<bool> Reducer::used_anywhere() const {
  std::vector<bool> anywhere(parameters_.size(), true);
  if (!options_.find_unused_parameters) return anywhere;
  const at::Tensor used = used_.cpu();
  for (std::size_t i = 0; i < anywhere.size(); ++i) anywhere[i] = used.data_ptr<int32_t>()[i] != 0;
  return anywhere;
}

void Reducer::finish_pass() {
  const c10::NoGradGuard no_grad;
  wait_for_reductions();
  const std::vector<bool> anywhere = used_anywhere();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (anywhere[i]) {
      buckets_.leaves()[i].mutable_grad() = buckets_.view(i);
    } else if (parameter.saved.defined()) {
      buckets_.view(i).copy_(parameter.saved);
    }
    parameter.saved.reset();
    parameter.used_locally = false;
  }
  MutexLock lock(mutex_);
  end_pass_locked();
}

void Reducer::finish_in_sink(GradientSink& sink) {
  const c10::NoGradGuard no_grad;
  wait_for_reductions();
  const std::vector<bool> anywhere = used_anywhere();
  std::vector<at::Tensor> leaves, gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!anywhere[i]) continue;
    leaves.push_back(buckets_.leaves()[i]);
    gradients.push_back(buckets_.view(i).clone());
  }
  sink.set(leaves, std::move(gradients));
  MutexLock lock(mutex_);
  before_.clear();
  end_pass_locked();
}

void Reducer::end_pass_locked() {
  if (!std::exchange(has_order_, true)) first_order_ = state_.order();
  state_.reset();
  outputs_.clear();
}

}  // namespace gradwire::collectives
