#include "gradwire/data_parallel/reducer.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/data_parallel/coalesced_broadcast.h"
#include "gradwire/data_parallel/replica_check.h"

namespace gradwire::collectives {
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

}  // namespace gradwire::collectives
