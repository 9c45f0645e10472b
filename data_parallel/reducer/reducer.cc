#include "gradwire/data_parallel/reducer/reducer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/buckets/coalesced_broadcast.h"
#include "gradwire/data_parallel/reducer/replica_check.h"

namespace gradwire::data_parallel {
namespace {

// The parameters that require grad and are not delayed.
std::vector<NamedTensor> in_buckets(const std::vector<NamedTensor>& parameters,
                                    const std::vector<NamedTensor>& delayed) {
  std::vector<NamedTensor> kept;
  for (const NamedTensor& each : parameters) {
    bool keep = each.tensor.requires_grad();
    for (const NamedTensor& other : delayed) keep = keep && !other.tensor.is_same(each.tensor);
    if (keep) kept.push_back(each);
  }
  return kept;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

std::shared_ptr<LowPrecision> lowered(const std::vector<NamedTensor>& parameters,
                                      std::optional<at::ScalarType> dtype) {
  return dtype.has_value() ? std::make_shared<LowPrecision>(tensors_of(parameters), *dtype) : nullptr;
}

std::function<void()> restored(std::shared_ptr<LowPrecision> precision) {
  return [precision = std::move(precision)] {
    if (precision != nullptr) precision->restore();
  };
}

// The lists are compared before the first broadcast: ranks with different lists would start different
// collectives, which would fail or hang without a useful error. The options are part of the list, because
// they also determine which collectives run.
absl::Status compare_with_ranks(const ReducerOptions& options, const std::vector<NamedTensor>& parameters,
                                const std::vector<NamedTensor>& buffers, at::Device device) {
  const auto name_of = [](std::optional<at::ScalarType> dtype) {
    return dtype.has_value() ? c10::toString(*dtype) : "none";
  };
  std::vector<std::string> lines = {absl::StrCat(
      "buckets of ", options.caps.first, " and ", options.caps.others,
      options.tune_caps ? " bytes at first" : " bytes", ", find_unused_parameters ",
      options.find_unused_parameters, ", broadcast_buffers ", options.broadcast_buffers, ", static_graph ",
      options.static_graph, ", ", options.delayed.size(), " delayed parameters, compute_dtype ",
      name_of(options.compute_dtype), ", reduce_dtype ", name_of(options.reduce_dtype))};
  for (const NamedTensor& each : parameters) lines.push_back(describe_replica("the parameter", each));
  for (const NamedTensor& each : options.delayed) {
    lines.push_back(describe_replica("the delayed parameter", each));
  }
  for (const NamedTensor& each : buffers) lines.push_back(describe_replica("the buffer", each));
  return check_replicas(*options.group, lines, device);
}

Error unfinished_pass(const std::string& missing, std::size_t parameters) {
  return Error(absl::FailedPreconditionError(absl::StrCat(
      "the last backward pass of DistributedDataParallel did not reach all parameters, so the reduction of "
      "the gradients has not ended. Parameters without a gradient: ",
      missing, " (of ", parameters,
      "). If forward does not use all parameters, set find_unused_parameters. If the pass failed, this rank "
      "cannot continue: the other ranks wait for its gradients")));
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
                 ReducerOptions options)
    : options_(std::move(options)),
      buffers_(tensors_of(buffers)),
      buckets_(in_buckets(parameters, options_.delayed), options_.caps, options_.reduce_dtype),
      arrangement_(options_.group, options_.caps, options_.tune_caps, *options_.clock),
      unused_(buckets_.size()),
      low_precision_(lowered(parameters, options_.compute_dtype)),
      divisor_(options_.group->size()),
      state_(buckets_.buckets(), buckets_.size()),
      reductions_(options_.group),
      backward_end_([this] { end_of_backward(); }, restored(low_precision_)),
      hooks_(*this, buckets_.leaves()) {
  if (!options_.delayed.empty()) delayed_.emplace(options_.delayed);
  if (options_.static_graph) static_graph_.emplace(buckets_.size());
  throw_if_error(compare_with_ranks(options_, parameters, buffers, buckets_.device()));
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  replicated_ = tensors_of(parameters);
  broadcast_from(0);
}

void Reducer::broadcast_from(int rank) { broadcast_coalesced(*options_.group, replicated_, rank); }

void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  if (reductions_.hook() != nullptr) {
    throw Error(absl::FailedPreconditionError(
        "this replica has a communication hook already; a hook can wrap another one, so register one hook"));
  }
  reductions_.set_hook(std::move(hook));
}

void Reducer::check_usable_locked() const {
  if (!broken_.ok()) {
    throw Error(absl::AbortedError(
        absl::StrCat("an earlier backward pass of this replica failed, so the ranks may differ; "
                     "make a new process group and a new replica. The pass failed with: ",
                     broken_.message())));
  }
}

LowPrecisionScope Reducer::before_forward(bool training) {
  const RestoreAfterError guard(low_precision_);
  if (c10::GradMode::is_enabled()) {
    bool no_sync = false;
    backward_end_.reset();
    {
      MutexLock lock(mutex_);
      no_sync = no_sync_ > 0;
      if (!no_sync) check_usable_locked();
      if (!no_sync && state_.started()) {
        throw unfinished_pass(buckets_.names_of(state_.missing()), buckets_.size());
      }
    }
    // In evaluation nothing is sent: the ranks may call forward different numbers of times.
    if (training) {
      const int size = options_.group->size();
      JoinStatus status{.active = size, .synchronizes = !no_sync, .divisor = size, .buffers_from = 0};
      if (join_ != nullptr) status = join_->before_step(!no_sync);
      if (!no_sync) synchronize(status);
    }
  }
  if (low_precision_ == nullptr || !low_precision_->lower()) return LowPrecisionScope(nullptr);
  LowPrecisionScope scope(low_precision_);
  hooks_.renew();
  return scope;
}

void Reducer::synchronize(const JoinStatus& status) {
  divisor_ = status.divisor;
  reductions_.set_divisor(divisor_);
  // A hook may keep a state for each bucket, so the buckets stay as they are after the first pass. No pass
  // runs now, so only `state_` needs the lock.
  if (arrangement_.before_pass(buckets_, /*may_tune=*/reductions_.hook() == nullptr)) {
    MutexLock lock(mutex_);
    state_ = ReadyState(buckets_.buckets(), buckets_.size());
  }
  if (options_.broadcast_buffers) {
    broadcast_coalesced(*options_.group, buffers_, status.buffers_from);
  }
}

// The nodes are held weakly, so a result that the user drops frees its graph as usual.
void Reducer::after_forward(LowPrecisionScope& scope, const std::vector<at::Tensor>& outputs) {
  if (!c10::GradMode::is_enabled()) return;
  scope.keep();
  if (ends_with_outputs()) backward_end_.watch(outputs);
  if (!options_.find_unused_parameters) return;
  MutexLock lock(mutex_);
  std::erase_if(outputs_, [](const std::weak_ptr<Node>& output) { return output.expired(); });
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) outputs_.push_back(torch::autograd::impl::gradient_edge(output).function);
  }
}

void Reducer::begin_no_sync() {
  MutexLock lock(mutex_);
  ++no_sync_;
}

void Reducer::end_no_sync() {
  MutexLock lock(mutex_);
  --no_sync_;
}

std::vector<std::vector<std::string>> Reducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const std::vector<std::size_t>& bucket : buckets_.buckets()) {
    names.emplace_back();
    for (std::size_t i : bucket) names.back().push_back(buckets_.name(i));
  }
  return names;
}

std::size_t Reducer::started_reductions() const {
  MutexLock lock(mutex_);
  return state_.taken();
}

// The part of Reducer that the hooks call in a backward pass. Steps of a pass:
//   1. The first gradient begins the pass. With find_unused_parameters, this also starts a reduction that
//      finds the parameters that no rank uses.
//   2. Each gradient is written into its bucket. When a bucket is complete, and all buckets before it are,
//      its reduction starts.
//   3. After the last bucket has started, wait for all reductions, and set `.grad` or the gradients in the
//      sink.
// The first pass of a static graph does all of this at its end, because it does not know yet which gradients
// will arrive.

namespace {

using torch::autograd::Node;

// The error of a reduction that has failed, for the caller of backward().
Error averaging_error(const absl::Status& status) {
  return Error(with_context(status, "averaging the gradients of DistributedDataParallel"));
}

Error missing_gradients(const std::string& names, bool static_graph) {
  return Error(absl::FailedPreconditionError(absl::StrCat(
      "a backward pass of DistributedDataParallel did not reach the parameters ", names,
      static_graph ? ", which the first pass has reached: with static_graph all passes must be the same"
                   : "; if forward does not use all parameters, set find_unused_parameters")));
}

Error second_gradient(const std::string& name, bool unused, bool static_graph) {
  const char* const why =
      static_graph
          ? "\" got more gradients than in the first pass: with static_graph all passes must be the same"
      : unused
          ? "\" got a gradient, although forward's outputs do not depend on it"
          : "\" got a second gradient before all parameters had their first one: a backward pass reached "
            "only a part of the parameters, and another backward pass followed. If the parameter is used by "
            "several "
            "passes inside one pass, set static_graph";
  return Error(absl::FailedPreconditionError(absl::StrCat("the parameter \"", name, why)));
}

// Whether libtorch's engine runs a backward pass on this thread: then its graph task has an id.
bool in_torch_engine() { return torch::autograd::get_current_graph_task_id() >= 0; }

void refuse_create_graph() {
  if (!c10::GradMode::is_enabled()) return;
  throw Error(absl::InvalidArgumentError(
      "DistributedDataParallel does not support backward with create_graph: averaged "
      "gradients cannot be differentiated; use torch::autograd::grad() of the inputs"));
}

GradBucket::Restore restored_by(const std::shared_ptr<LowPrecision>& precision) {
  if (precision == nullptr) return nullptr;
  return [precision](const at::Tensor& parameter) { precision->restore(parameter); };
}

// For each of the first `parameters` nodes of the hooks, whether the pass that runs will reach it.
std::vector<bool> reached_nodes(const AccumulationHooks& hooks, std::size_t parameters,
                                const std::vector<std::weak_ptr<Node>>* outputs) {
  std::vector<bool> reached(parameters, true);
  if (outputs != nullptr) {
    const std::vector<const Node*> list = reachable_nodes(*outputs);
    const HashSet<const Node*> nodes(list.begin(), list.end());
    for (std::size_t i = 0; i < parameters; ++i) reached[i] = nodes.contains(hooks.node(i));
    return reached;
  }
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (std::size_t i = 0; nodes != nullptr && i < parameters; ++i) {
    reached[i] = nodes->count(const_cast<Node*>(hooks.node(i))) != 0;
  }
  return reached;
}

}  // namespace

void Reducer::on_accumulated(std::size_t index) {
  if (!in_torch_engine()) return;
  // The user may still save the parameters.
  const RestoreAfterError guard(low_precision_);
  {
    MutexLock lock(mutex_);
    if (no_sync_ > 0) {
      unused_.accumulated_locally(index);
      return;
    }
    check_usable_locked();
    refuse_create_graph();
    if (!state_.started()) begin_pass_locked(/*in_sink=*/false);
    if (static_graph_.has_value() && !static_graph_->accumulated(index)) return;
    mark_locked(index);
    buckets_.move_grad_into_bucket(index);
  }
  // Waiting here would block the engine's thread, which may still have nodes to run.
  // The engine runs the callback at the end of the pass, so backward() returns after it.
  if (start_reductions() && !ends_with_outputs()) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_pass(); });
  }
}

// A pass of a context runs the hooks of the accumulating node but never writes to `.grad`. So the gradient
// is taken before the accumulation, and is added to the gradient that the sink had when this pass began
// (`before_`).
torch::autograd::variable_list Reducer::before_accumulation(std::size_t index,
                                                            const torch::autograd::variable_list& gradients) {
  if (in_torch_engine()) return gradients;
  std::unique_ptr<GradientSink> sink;
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
    if (ends_with_outputs() || delayed_.has_value()) {
      throw Error(absl::FailedPreconditionError(
          "static_graph, mixed_precision and delayed parameters work only in passes of libtorch's engine, "
          "not in an autograd Context"));
    }
    if (!state_.started()) {
      before_ = sink->get(buckets_.leaves());
      begin_pass_locked(/*in_sink=*/true);
    }
    mark_locked(index);
    buckets_.write_sum(index, gradients[0], before_[index]);
  }
  if (start_reductions()) finish_pass(sink.get());
  // Accumulate nothing now: finish_pass() writes the average to the sink.
  return {at::Tensor()};
}

// Ends a pass whose last gradient is not known from the buckets. In the first pass of a static graph all
// gradients are in `.grad` now, and none is in a bucket.
void Reducer::end_of_backward() {
  // After an error too.
  const LowPrecisionScope scope(low_precision_);
  {
    MutexLock lock(mutex_);
    if (no_sync_ > 0 || !state_.started()) return;
    if (static_graph_.has_value() && static_graph_->recording()) {
      static_graph_->end_recording();
      const std::vector<bool> reached = static_graph_->reached();
      const c10::NoGradGuard no_grad;
      mark_unused_locked(/*in_sink=*/false, reached);
      exchanges_unused_ = true;
      for (std::size_t i = 0; i < reached.size(); ++i) {
        if (!reached[i]) continue;
        mark_locked(i);
        buckets_.move_grad_into_bucket(i);
      }
    }
  }
  start_reductions();
  {
    MutexLock lock(mutex_);
    if (!state_.all_taken()) {
      throw missing_gradients(buckets_.names_of(state_.missing()), static_graph_.has_value());
    }
  }
  finish_pass();
}

void Reducer::begin_pass_locked(bool in_sink) {
  state_.start();
  arrangement_.pass_began();
  if (in_sink) buckets_.detach_gradients();
  if (static_graph_.has_value()) {
    static_graph_->begin_pass();
    if (!static_graph_->recording()) mark_unused_locked(in_sink, static_graph_->reached());
    return;
  }
  if (!options_.find_unused_parameters) return;
  mark_unused_locked(in_sink, reached_nodes(hooks_, buckets_.size(), in_sink ? &outputs_ : nullptr));
  exchanges_unused_ = true;
}

void Reducer::mark_unused_locked(bool in_sink, const std::vector<bool>& reached) {
  const c10::NoGradGuard no_grad;
  unused_.begin(buckets_, reached, in_sink ? &before_ : nullptr);
  for (std::size_t i = 0; i < reached.size(); ++i) {
    if (!reached[i]) state_.mark(i, /*by_gradient=*/false);
  }
}

void Reducer::mark_locked(std::size_t index) {
  if (state_.mark(index)) return;
  throw second_gradient(buckets_.name(index), unused_.is_unused(index), static_graph_.has_value());
}

// All ranks must start the reductions in the same order, so one thread starts them. It holds no lock, because
// a hook of the user may run. A bucket that another thread completes meanwhile is found by the next take():
// that thread marks the bucket before it finds that this one launches. Starting a reduction does not block.
// On an accelerator the reduction is enqueued behind the streams in which the gradients were computed, so it
// overlaps with the rest of the pass.
bool Reducer::start_reductions() {
  bool exchanges_unused = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(launching_, true)) return false;
    exchanges_unused = std::exchange(exchanges_unused_, false);
  }
  // The thread that takes the last bucket has started the last reduction.
  bool last = false;
  const auto take = [&]() -> std::optional<std::size_t> {
    MutexLock lock(mutex_);
    const std::optional<std::size_t> bucket = state_.take_complete();
    launching_ = bucket.has_value();
    last = last || (bucket.has_value() && state_.all_taken());
    return bucket;
  };
  const GradBucket::Restore restore = restored_by(low_precision_);
  try {
    const c10::NoGradGuard no_grad;
    // The first reduction of the pass on every rank.
    if (exchanges_unused) unused_.exchange(*options_.group, reductions_, buckets_.device());
    while (const std::optional<std::size_t> bucket = take()) {
      if (const std::optional<std::size_t> sparse = buckets_.sparse_parameter(*bucket)) {
        reductions_.start_sparse(buckets_.sparse(*sparse), buckets_.sparse(*sparse));
      } else {
        reductions_.start(GradBucket(*bucket, buckets_.is_last_flat(*bucket),
                                     buckets_.flat_for_reduction(*bucket), buckets_.leaves_of(*bucket),
                                     restore));
      }
    }
  } catch (...) {
    fail_pass();
  }
  return last;
}

// After an error the buckets of the ranks differ, so all later passes fail too (`broken_`).
void Reducer::fail_pass() {
  const absl::Status status = status_from_exception(std::current_exception());
  MutexLock lock(mutex_);
  launching_ = false;
  if (broken_.ok()) broken_ = status;
  throw averaging_error(status);
}

void Reducer::finish_pass(GradientSink* sink, bool zeros) {
  const c10::NoGradGuard no_grad;
  try {
    take_averages(sink, zeros);
  } catch (...) {
    fail_pass();
  }
  MutexLock lock(mutex_);
  arrangement_.pass_ended(state_.order());
  state_.reset();
  before_.clear();
  outputs_.clear();
}

// Waits without the lock, because a wait is as long as the slowest rank. On an accelerator no thread waits:
// libtorch's engine runs this with the streams in which backward() was called as the current ones, and these
// streams wait, so the optimizer's work is behind the averages.
//
// For a parameter that any rank used, the view with the average becomes `.grad`. A sink keeps the tensors
// that it gets, but the next pass overwrites the buckets, so it gets copies.
void Reducer::take_averages(GradientSink* sink, bool zeros) {
  if (delayed_.has_value() && sink == nullptr) {
    delayed_->start(reductions_, *options_.group, divisor_, zeros);
  }
  reductions_.finish();
  if (low_precision_ != nullptr) low_precision_->restore();
  const std::vector<bool> anywhere = unused_.used_anywhere();
  unused_.end(buckets_, sink != nullptr);
  std::vector<at::Tensor> leaves, gradients;
  for (std::size_t i = 0; i < anywhere.size(); ++i) {
    if (!anywhere[i]) continue;
    leaves.push_back(buckets_.leaves()[i]);
    gradients.push_back(buckets_.reduced(i, /*copy=*/sink != nullptr));
    if (sink == nullptr) leaves.back().mutable_grad() = gradients.back();
  }
  if (sink != nullptr) {
    sink->set(leaves, std::move(gradients));
  } else if (delayed_.has_value()) {
    delayed_->end();
  }
  if (reductions_.hook() != nullptr) reductions_.hook()->pass_ended();
}

// Runs the collectives of a pass without a pass: the order is that of the other ranks.
void Reducer::shadow_pass(const JoinStatus& status) {
  synchronize(status);
  {
    const c10::NoGradGuard no_grad;
    MutexLock lock(mutex_);
    check_usable_locked();
    state_.start();
    unused_.begin_without_gradients(buckets_);
    const bool first = static_graph_.has_value() && static_graph_->recording();
    if (first) {
      static_graph_->begin_pass();
      static_graph_->end_recording();
    }
    exchanges_unused_ = first || (options_.find_unused_parameters && !static_graph_.has_value());
    for (std::size_t i = 0; i < buckets_.size(); ++i) state_.mark(i, /*by_gradient=*/false);
  }
  start_reductions();
  finish_pass(/*sink=*/nullptr, /*zeros=*/true);
}

}  // namespace gradwire::data_parallel
