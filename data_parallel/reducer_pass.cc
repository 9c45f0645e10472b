// The part of Reducer that the hooks call in a backward pass. Steps of a pass:
//   1. The first gradient begins the pass. With find_unused_parameters, this also starts a reduction that
//      finds the parameters that no rank uses.
//   2. Each gradient is written into its bucket. When a bucket is complete, and all buckets before it are,
//      its reduction starts.
//   3. After the last bucket has started, wait for all reductions, and set `.grad` or the gradients in the
//      sink.

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

// Whether libtorch's engine runs a backward pass on this thread: then its graph task has an id.
bool in_torch_engine() { return torch::autograd::get_current_graph_task_id() >= 0; }

void refuse_create_graph() {
  if (!c10::GradMode::is_enabled()) return;
  throw Error(absl::InvalidArgumentError(
      "DistributedDataParallel does not support backward with create_graph: averaged "
      "gradients cannot be differentiated; use torch::autograd::grad() of the inputs"));
}

// The nodes that a backward pass from these outputs can reach.
absl::flat_hash_set<const Node*> reachable_nodes(const std::vector<std::weak_ptr<Node>>& outputs) {
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  // The pointers stay valid: the pass that runs keeps the graph alive.
  for (const std::weak_ptr<Node>& output : outputs) visit(output.lock().get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

}  // namespace

void Reducer::on_accumulated(std::size_t index) {
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
    buckets_.move_grad_into_bucket(index);
    start_reductions_locked();
    last = state_.all_taken();
  }
  // Waiting here would block the engine's thread, which may still have nodes to run.
  // The engine runs the callback at the end of the pass, so backward() returns after it.
  if (last) torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_pass(); });
}

// A pass of a context runs the hooks of the accumulating node but never writes to `.grad`. So the gradient
// is taken before the accumulation, and is added to the gradient that the sink had when this pass began
// (`before_`).
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
                                        "replicated parameter, but no destination for its gradients was "
                                        "found; link //autograd"));
    }
    if (!state_.started()) {
      before_ = sink->get(buckets_.leaves());
      begin_pass_locked(/*in_sink=*/true);
    }
    mark_locked(index);
    buckets_.write_sum(index, gradients[0], before_[index]);
    start_reductions_locked();
    last = state_.all_taken();
  }
  if (last) finish_in_sink(*sink);
  // Accumulate nothing now: finish_in_sink() writes the average to the sink.
  return {at::Tensor()};
}

void Reducer::begin_pass_locked(bool in_sink) {
  state_.start();
  reductions_.clear();
  if (in_sink) {
    // This pass overwrites the buckets but must not change `.grad`: so a `.grad` that is a view gets its own
    // memory.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (buckets_.holds_grad(i)) buckets_.leaves()[i].mutable_grad() = buckets_.view(i).clone();
    }
    buckets_.fence();
  }
  if (options_.find_unused_parameters) mark_unused_locked(in_sink);
}

// libtorch's engine knows the nodes of its pass; without that list every parameter counts as reached. For
// another pass the outputs of forward are the only hint: a walk from them finds what it can reach.
std::vector<bool> Reducer::reached_locked(bool in_sink) {
  std::vector<bool> reached(parameters_.size());
  if (in_sink) {
    const auto nodes = reachable_nodes(outputs_);
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

// Problem: a parameter that this rank does not use gets no gradient here, so its bucket would never be
// complete, and the other ranks would wait. Steps:
// 1. Determine which parameters the pass reaches.
// 2. Write the contribution of each other parameter into its bucket now, and mark it as ready. If its
//    `.grad` is the view into the bucket, the average will overwrite it, so a value that no rank may change
//    is saved.
// 3. Start a reduction of which parameters any rank uses. A parameter that no rank uses keeps its `.grad`.
void Reducer::mark_unused_locked(bool in_sink) {
  const std::vector<bool> reached = reached_locked(in_sink);
  at::Tensor used = at::empty({static_cast<int64_t>(parameters_.size())}, at::kInt);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool has_sum = in_sink ? before_[i].defined() : parameter.used_locally;
    used.data_ptr<int32_t>()[i] = reached[i] || has_sum ? 1 : 0;
    parameter.unused = !reached[i];
    if (reached[i]) continue;
    // Other ranks may use the parameter, so this rank must contribute to its average: it contributes the
    // gradient that was accumulated before.
    if (in_sink) {
      buckets_.write_sum(i, at::Tensor(), before_[i]);
    } else {
      const at::Tensor& grad = buckets_.leaves()[i].grad();
      if (!buckets_.holds_grad(i)) {
        buckets_.write_sum(i, grad, at::Tensor());
      } else if (!has_sum) {
        buckets_.note_stream(i);
        parameter.saved = grad.clone();
      }
    }
    state_.mark(i, /*by_gradient=*/false);
  }
  // This is the first reduction of the pass on every rank, so the order is the same everywhere.
  used_ = used.to(buckets_.device());
  reductions_.push_back(options_.group->all_reduce_async(used_, ReduceOp::kMax));
}

void Reducer::mark_locked(std::size_t index) {
  if (state_.mark(index)) return;
  const std::string& name = buckets_.name(index);
  throw Error(absl::FailedPreconditionError(
      parameters_[index].unused
          ? absl::StrCat("the parameter \"", name,
                         "\" got a gradient, although forward's outputs do not depend on it")
          : absl::StrCat(
                "the parameter \"", name,
                "\" got a second gradient before all parameters had their first one: a backward pass "
                "reached only a part of the parameters, and another backward pass followed")));
}

// Holds the lock, because all ranks must start the reductions in the same order. Starting one does not block.
// On an accelerator the reduction is enqueued behind the streams in which the gradients were computed, so it
// overlaps with the rest of the pass.
void Reducer::start_reductions_locked() {
  while (const std::optional<std::size_t> bucket = state_.take_complete()) {
    reductions_.push_back(
        options_.group->all_reduce_async(buckets_.flat_for_reduction(*bucket), ReduceOp::kAvg));
  }
}

// Takes the reductions and waits without the lock, because a wait is as long as the slowest rank. On an
// accelerator no thread waits: libtorch's engine runs this with the streams in which backward() was called as
// the current ones, and these streams wait, so the optimizer's work is behind the averages. After an
// error the buckets of the ranks differ, so all later passes fail too (`broken_`).
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

// Writes the results of a pass of libtorch's engine. For a parameter that any rank used, the view with the
// average becomes `.grad`. For any other parameter the value from before the pass is restored in the view.
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

// Writes the results of any other pass. The sink keeps the tensors that it gets, but the next pass
// overwrites the buckets, so it gets copies.
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
  // Only the first pass determines the order. The next forward arranges the buckets by it.
  if (!std::exchange(has_order_, true)) first_order_ = state_.order();
  state_.reset();
  outputs_.clear();
}

}  // namespace gradwire::collectives
