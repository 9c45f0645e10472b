#include "gradwire/data_parallel/zero/zero_redundancy_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <exception>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/collectives/world.h"
#include "gradwire/data_parallel/zero/partition.h"

namespace gradwire::data_parallel {
namespace {

using torch::optim::OptimizerParamGroup;

std::string archive_of(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return std::move(out).str();
}

// Reads the archive of a rank. Its bytes come from another process.
void read_state(const std::string& bytes, torch::optim::Optimizer& optimizer, int rank) {
  try {
    torch::serialize::InputArchive state;
    state.load_from(bytes.data(), bytes.size());
    optimizer.load(state);
  } catch (...) {
    throw Error(with_context(status_from_exception(std::current_exception()),
                             absl::StrCat("reading the optimizer's state of rank ", rank, " of the group")));
  }
}

using Impls = HashSet<const c10::TensorImpl*>;

Impls impls_of(const std::vector<at::Tensor>& tensors) {
  Impls impls;
  for (const at::Tensor& each : tensors) impls.insert(each.unsafeGetTensorImpl());
  return impls;
}

// While it exists, the groups of an optimizer have only the chosen parameters.
class ParamsOfTheStep {
 public:
  ParamsOfTheStep(torch::optim::Optimizer& optimizer, const Impls& chosen) : optimizer_(optimizer) {
    for (OptimizerParamGroup& group : optimizer_.param_groups()) {
      std::vector<at::Tensor>& params = group.params();
      all_.push_back(params);
      std::erase_if(params,
                    [&](const at::Tensor& each) { return !chosen.contains(each.unsafeGetTensorImpl()); });
    }
  }
  ~ParamsOfTheStep() {
    for (std::size_t g = 0; g < all_.size(); ++g) optimizer_.param_groups()[g].params().swap(all_[g]);
  }
  ParamsOfTheStep(const ParamsOfTheStep&) = delete;
  ParamsOfTheStep& operator=(const ParamsOfTheStep&) = delete;

 private:
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> all_;
};

class StepHook : public JoinHook {
 public:
  explicit StepHook(ShardedOptimizer& optimizer) : optimizer_(optimizer) {}
  void shadow_step(const JoinStatus&) override { optimizer_.step(); }
  void all_joined(int) override {}

 private:
  ShardedOptimizer& optimizer_;
};

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::vector<OptimizerParamGroup> groups,
                                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, Factory factory,
                                   std::shared_ptr<collectives::ProcessGroup> group)
    : Optimizer(groups, std::move(defaults)),
      group_(collectives::group_or_world(group)),
      factory_(std::move(factory)) {
  if (group_->rank() < 0) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "ZeroRedundancyOptimizer: this rank is not a member of the group \"", group_->name(), "\"")));
  }
  load_.resize(static_cast<std::size_t>(group_->size()));
  divide_groups();
  if (std::all_of(owners_.begin(), owners_.end(), [](const auto& each) { return each.empty(); })) {
    throw Error(absl::InvalidArgumentError("ZeroRedundancyOptimizer needs at least one parameter"));
  }
  local_ = factory_(share_of(group_->rank()));
}

void ShardedOptimizer::divide_groups() {
  for (std::size_t g = 0; g < owners_.size(); ++g) {
    if (g < param_groups().size() && owners_[g].size() == param_groups()[g].params().size()) continue;
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "ZeroRedundancyOptimizer: the parameters of group ", g,
        " have changed since the optimizer was made; add parameters as a new group with add_param_group()")));
  }
  for (std::size_t g = owners_.size(); g < param_groups().size(); ++g) {
    std::vector<int64_t> elements;
    for (const at::Tensor& parameter : param_groups()[g].params()) elements.push_back(parameter.numel());
    owners_.push_back(partition_parameters(elements, load_));
    for (std::size_t i = 0; i < elements.size(); ++i) {
      owner_of_[param_groups()[g].params()[i].unsafeGetTensorImpl()] = owners_.back()[i];
    }
    if (local_ != nullptr) local_->add_param_group(share_of(group_->rank()).back());
    consolidated_.clear();
  }
}

std::vector<OptimizerParamGroup> ShardedOptimizer::share_of(int rank) const {
  std::vector<OptimizerParamGroup> groups;
  for (std::size_t g = 0; g < owners_.size(); ++g) {
    const OptimizerParamGroup& all = param_groups()[g];
    std::vector<at::Tensor> own;
    for (std::size_t i = 0; i < all.params().size(); ++i) {
      if (owners_[g][i] == rank) own.push_back(all.params()[i]);
    }
    groups.emplace_back(std::move(own), all.options().clone());
  }
  return groups;
}

void ShardedOptimizer::copy_options(torch::optim::Optimizer& to) const {
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    to.param_groups()[g].set_options(param_groups()[g].options().clone());
  }
}

at::Device ShardedOptimizer::join_device() const {
  for (const OptimizerParamGroup& each : param_groups()) {
    if (!each.params().empty()) return each.params()[0].device();
  }
  return at::kCPU;
}

at::Tensor ShardedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  step_and_broadcast();
  return loss;
}

void ShardedOptimizer::step_and_broadcast() {
  divide_groups();
  if (join_ != nullptr) join_->before_step(/*synchronizes=*/true);
  consolidated_.clear();
  copy_options(*local_);
  local_->step();
  std::vector<at::Tensor> all;
  for (const OptimizerParamGroup& group : param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  for (CoalescedBroadcast& each : broadcast_some(all)) each.finish();
}

// Problem: an optimizer steps all parameters that have a gradient, and those that are not in `parameters` may
// have one too, from this pass or an earlier one. So the optimizer gets only these parameters for the time of
// the step. Its state belongs to the parameters and not to their places in the groups.
void ShardedOptimizer::step_some(const std::vector<at::Tensor>& parameters) {
  divide_groups();
  const Impls chosen = impls_of(parameters);
  consolidated_.clear();
  copy_options(*local_);
  const ParamsOfTheStep only(*local_, chosen);
  local_->step();
}

// A rank's parameters travel together. All ranks start the broadcasts in the order of the ranks.
std::vector<CoalescedBroadcast> ShardedOptimizer::broadcast_some(const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<at::Tensor>> by_owner(static_cast<std::size_t>(group_->size()));
  for (const at::Tensor& each : parameters) {
    if (const std::optional<int> owner = owner_of(each)) {
      by_owner[static_cast<std::size_t>(*owner)].push_back(each);
    }
  }
  std::vector<CoalescedBroadcast> broadcasts;
  for (int rank = 0; rank < group_->size(); ++rank) {
    broadcasts.emplace_back(*group_, by_owner[static_cast<std::size_t>(rank)], rank);
  }
  return broadcasts;
}

std::optional<int> ShardedOptimizer::owner_of(const at::Tensor& parameter) const {
  const auto found = owner_of_.find(parameter.unsafeGetTensorImpl());
  return found == owner_of_.end() ? std::nullopt : std::optional(found->second);
}

void ShardedOptimizer::consolidate_state(int to) {
  if (to < 0 || to >= group_->size()) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("consolidate_state: got rank ", to,
                                                        ", expected a rank of the group, from 0 to ",
                                                        group_->size() - 1)));
  }
  divide_groups();
  std::vector<std::string> states;
  collectives::gather_object(states, archive_of(*local_), group_->ranks()[static_cast<std::size_t>(to)],
                             group_);
  consolidated_ = std::move(states);
}

std::unique_ptr<torch::optim::Optimizer> ShardedOptimizer::make_whole() const {
  std::vector<OptimizerParamGroup> groups;
  for (const OptimizerParamGroup& each : param_groups()) {
    groups.emplace_back(each.params(), each.options().clone());
  }
  return factory_(std::move(groups));
}

// 1. Make an optimizer for each rank's share, and load the rank's state into it.
// 2. Move the states into an optimizer of all parameters, which saves them.
void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  if (consolidated_.size() != static_cast<std::size_t>(group_->size()) ||
      owners_.size() != param_groups().size()) {
    throw Error(absl::FailedPreconditionError(
        "the states of the other ranks are not here; call consolidate_state() on all ranks after the last "
        "step or add_param_group()"));
  }
  const std::unique_ptr<torch::optim::Optimizer> whole = make_whole();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const std::unique_ptr<torch::optim::Optimizer> part = factory_(share_of(rank));
    read_state(consolidated_[static_cast<std::size_t>(rank)], *part, rank);
    for (auto& [key, value] : part->state()) whole->state()[key] = std::move(value);
  }
  whole->save(archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  divide_groups();
  const std::unique_ptr<torch::optim::Optimizer> whole = make_whole();
  whole->load(archive);
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    param_groups()[g].set_options(whole->param_groups()[g].options().clone());
  }
  std::unique_ptr<torch::optim::Optimizer> local = factory_(share_of(group_->rank()));
  for (const OptimizerParamGroup& group : local->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = whole->state().find(parameter.unsafeGetTensorImpl());
      if (found != whole->state().end()) {
        local->state()[parameter.unsafeGetTensorImpl()] = std::move(found->second);
      }
    }
  }
  local_ = std::move(local);
  consolidated_.clear();
}

std::unique_ptr<JoinHook> ShardedOptimizer::join_hook() { return std::make_unique<StepHook>(*this); }

}  // namespace gradwire::data_parallel
