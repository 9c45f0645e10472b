#include "gradwire/data_parallel/reducer.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/rank_names.h"
#include "gradwire/data_parallel/coalesced_broadcast.h"
#include "gradwire/data_parallel/replica_check.h"

namespace gradwire::collectives {

// A hook on the node that accumulates a parameter's gradient. Runs before the accumulation. It serves passes
// whose gradients do not go to `.grad`.
class Reducer::PreHook : public torch::autograd::FunctionPreHook {
 public:
  PreHook(Reducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
  const Reducer& reducer() const { return reducer_; }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    return reducer_.before_accumulation(index_, gradients);
  }

 private:
  Reducer& reducer_;
  const std::size_t index_;
};

// As PreHook, but runs after the accumulation, when `.grad` holds the gradient. It serves passes of
// libtorch's engine.
class Reducer::PostHook : public torch::autograd::FunctionPostHook {
 public:
  PostHook(Reducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
  const Reducer& reducer() const { return reducer_; }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    reducer_.on_accumulated(index_);
    return outputs;
  }

 private:
  Reducer& reducer_;
  const std::size_t index_;
};

namespace {

std::vector<NamedTensor> with_grad(const std::vector<NamedTensor>& parameters) {
  std::vector<NamedTensor> kept;
  for (const NamedTensor& each : parameters) {
    if (each.tensor.requires_grad()) kept.push_back(each);
  }
  return kept;
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
                 ReducerOptions options)
    : options_(std::move(options)),
      buckets_(with_grad(parameters), options_.caps),
      parameters_(buckets_.size()),
      state_(buckets_.buckets(), parameters_.size()) {
  for (const NamedTensor& buffer : buffers) buffers_.push_back(buffer.tensor);
  parameters.insert(parameters.end(), buffers.begin(), buffers.end());
  check_and_broadcast(parameters);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(buckets_.leaves()[i]);
    parameter.accumulator->add_pre_hook(std::make_unique<PreHook>(*this, i));
    parameter.accumulator->add_post_hook(std::make_unique<PostHook>(*this, i));
  }
}

// A module may outlive its wrapper, and several wrappers may share parameters. So only the hooks of this
// object are removed.
Reducer::~Reducer() {
  for (Parameter& parameter : parameters_) {
    if (parameter.accumulator == nullptr) continue;
    std::erase_if(parameter.accumulator->pre_hooks(), [this](const auto& hook) {
      const auto* mine = dynamic_cast<const PreHook*>(hook.get());
      return mine != nullptr && &mine->reducer() == this;
    });
    std::erase_if(parameter.accumulator->post_hooks(), [this](const auto& hook) {
      const auto* mine = dynamic_cast<const PostHook*>(hook.get());
      return mine != nullptr && &mine->reducer() == this;
    });
  }
}

// The lists are compared before the first broadcast: ranks with different lists would start different
// collectives, which would fail or hang without a useful error. The options are part of the list, because
// they also determine which collectives run.
void Reducer::check_and_broadcast(const std::vector<NamedTensor>& parameters) {
  std::vector<std::string> lines = {absl::StrCat(
      "buckets of ", options_.caps.first, " and ", options_.caps.others, " bytes, find_unused_parameters ",
      options_.find_unused_parameters, ", broadcast_buffers ", options_.broadcast_buffers)};
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : parameters) {
    lines.push_back(describe_replica(
        tensors.size() < parameters.size() - buffers_.size() ? "the parameter" : "the buffer", each));
    tensors.push_back(each.tensor);
  }
  throw_if_error(check_replicas(*options_.group, lines, buckets_.device()));
  broadcast_coalesced(*options_.group, tensors);
}

// All ranks must have the same buckets, but the gradients become ready in a slightly different order on each
// rank.
// 1. Take this rank's order of the first pass.
// 2. Adopt the order of the group's first rank.
// 3. Check it, because it comes from another process, and arrange the buckets.
// No pass runs meanwhile, so only `state_` needs the lock.
void Reducer::rebuild_buckets() {
  std::vector<std::size_t> mine;
  {
    MutexLock lock(mutex_);
    if (!first_order_.has_value()) return;
    mine = *std::move(first_order_);
    first_order_.reset();
  }
  // One bucket has no order to improve. The number of buckets is equal on all ranks, so all of them return
  // here.
  if (buckets_.buckets().size() == 1) return;
  at::Tensor order = at::empty({static_cast<int64_t>(mine.size())}, at::kLong);
  for (std::size_t i = 0; i < mine.size(); ++i) order.data_ptr<int64_t>()[i] = static_cast<int64_t>(mine[i]);
  order = order.to(buckets_.device());
  options_.group->broadcast(order, options_.group->ranks()[0]);
  order = order.cpu();
  const int64_t* data = order.data_ptr<int64_t>();
  const std::vector<int64_t> agreed(data, data + order.numel());
  if (!is_permutation_of_all(agreed, parameters_.size())) {
    throw Error(
        absl::InternalError(absl::StrCat("malformed order of the parameters from ",
                                         name_rank(0, options_.group->ranks()), ": not a permutation")));
  }
  buckets_.arrange(std::vector<std::size_t>(agreed.begin(), agreed.end()));
  MutexLock lock(mutex_);
  state_ = ReadyState(buckets_.buckets(), parameters_.size());
}

void Reducer::check_usable_locked() const {
  if (!broken_.ok()) {
    throw Error(
        absl::AbortedError(absl::StrCat("an earlier reduction of gradients failed: ", broken_.message())));
  }
}

void Reducer::before_forward(bool training) {
  if (!c10::GradMode::is_enabled()) return;
  {
    MutexLock lock(mutex_);
    if (no_sync_ > 0) return;
    check_usable_locked();
    if (state_.started()) {
      throw Error(absl::FailedPreconditionError(absl::StrCat(
          "the last backward pass of DistributedDataParallel did not reach all parameters, so the "
          "reduction of the gradients has not ended. Parameters without a gradient: ",
          buckets_.names_of(state_.missing()), " (of ", parameters_.size(),
          "). If forward does not use all parameters, set find_unused_parameters. If the pass failed, "
          "this rank cannot continue: the other ranks wait for its gradients")));
    }
  }
  // In evaluation nothing is sent: the ranks may call forward different numbers of times.
  if (!training) return;
  rebuild_buckets();
  if (options_.broadcast_buffers) broadcast_coalesced(*options_.group, buffers_);
}

// The nodes are held weakly, so a result that the user drops frees its graph as usual.
void Reducer::after_forward(const std::vector<at::Tensor>& outputs) {
  if (!options_.find_unused_parameters || !c10::GradMode::is_enabled()) return;
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
