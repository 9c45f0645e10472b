#include "gradwire/autograd/optimizer/optimizer_shards.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/autograd/context/contexts.h"
#include "gradwire/autograd/optimizer/optimizer_archive.h"
#include "gradwire/autograd/optimizer/optimizer_closure.h"
#include "gradwire/autograd/optimizer/owners_wait.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/order/stream_order.h"
#include "gradwire/rpc/registry/registration.h"

namespace gradwire::autograd {
namespace {

class Rate : public torch::optim::OptimizerCloneableOptions<Rate> {
 public:
  explicit Rate(double rate) : rate_(rate) {}
  double get_lr() const override { return rate_; }
  void set_lr(const double rate) override { rate_ = rate; }

 private:
  double rate_;
};

std::vector<torch::optim::OptimizerParamGroup> groups_of(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (double rate : rates) groups.emplace_back(std::vector<torch::Tensor>(), std::make_unique<Rate>(rate));
  return groups;
}

}  // namespace

LearningRates::LearningRates(const std::vector<double>& rates)
    : torch::optim::Optimizer(groups_of(rates), std::make_unique<Rate>(0)) {}

std::vector<double> LearningRates::get() const {
  std::vector<double> rates;
  for (const auto& group : param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void LearningRates::set(const std::vector<double>& rates) {
  for (std::size_t i = 0; i < rates.size(); ++i) param_groups().at(i).options().set_lr(rates[i]);
}

torch::Tensor LearningRates::step(LossClosure) {
  throw Error(absl::FailedPreconditionError(
      "cannot step the optimizer of schedulable(): it has no parameters; call DistributedOptimizer::step"));
}

GRADWIRE_RPC_METHOD(OptimizerShard, step)
GRADWIRE_RPC_METHOD(OptimizerShard, step_with_closure)
GRADWIRE_RPC_METHOD(OptimizerShard, set_learning_rates)
GRADWIRE_RPC_METHOD(OptimizerShard, learning_rates)
GRADWIRE_RPC_METHOD(OptimizerShard, shapes)
GRADWIRE_RPC_METHOD(OptimizerShard, save)
GRADWIRE_RPC_METHOD(OptimizerShard, load)
GRADWIRE_RPC_METHOD(ClosureTurns, evaluate)

namespace {

std::vector<std::size_t> sizes_of(const std::vector<ParameterRefs>& groups, const std::string& kind) {
  auto refuse = [&](const std::string& what) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("DistributedOptimizer<", kind, ">: ", what)));
  };
  if (groups.empty()) refuse("it needs parameters, got no group");
  std::vector<std::size_t> sizes;
  for (const ParameterRefs& group : groups) {
    if (group.empty()) refuse(absl::StrCat("group ", sizes.size(), " has no parameters"));
    sizes.push_back(group.size());
  }
  return sizes;
}

// Whether all rates are equal. NaN, which stands for an optimizer without a learning rate, is equal to NaN.
bool same_rates(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (x != x && y != y); });
}

std::vector<std::string> names_of(const std::vector<ParameterOwner>& owners) {
  std::vector<std::string> names;
  for (const ParameterOwner& owner : owners) names.push_back(owner.worker.name);
  return names;
}

std::string shape_text(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return absl::StrCat(c10::toString(dtype), "[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace

// All calls are sent before the first answer is awaited, so the owners work at the same time. The calls are
// not part of the current context: they carry no gradients, and its backward must not wait for them.
template <auto F, class... A>
auto OptimizerShards::call_all(absl::string_view function, const A&... arguments) const {
  using Result = decltype(shards_[0].rpc_async<F>(arguments...));
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Result> calls;
  for (const auto& shard : shards_) {
    calls.push_back(shard.with_timeout(settings_.timeout).template rpc_async<F>(arguments...));
  }
  const absl::Cleanup ordered = [this] { order_after_own_shard(); };
  // A step is short, and there are many.
  if (function != "step") show_owners_wait(name_of(function), names_of(owners_), calls);
  return wait_for_owners(name_of(function), owners_, calls);
}

void OptimizerShards::order_after_own_shard() const {
  const auto& order = agent_->services().stream_order();
  const auto is_own = [self = agent_->services().self().id](const ParameterOwner& owner) {
    return owner.worker.id == self;
  };
  if (order != nullptr && std::any_of(owners_.begin(), owners_.end(), is_own)) order->wait();
}

OptimizerShards::OptimizerShards(std::shared_ptr<rpc::Agent> agent, const std::vector<ParameterRefs>& groups,
                                 Settings settings, const Make& make)
    : agent_(std::move(agent)),
      settings_(std::move(settings)),
      group_sizes_(sizes_of(groups, settings_.kind)),
      owners_(by_owner(groups)),
      schedulers_(settings_.rates),
      delivered_(settings_.rates) {
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Future<rpc::RRef<OptimizerShard>>> made;
  for (const ParameterOwner& owner : owners_) {
    made.push_back(make(owner, rpc::Destination(owner.worker).with_timeout(settings_.timeout)));
  }
  shards_ = wait_for_owners(absl::StrCat("DistributedOptimizer<", settings_.kind, ">"), owners_, made);
}

std::string OptimizerShards::name_of(absl::string_view function) const {
  return absl::StrCat("DistributedOptimizer<", settings_.kind, ">::", function);
}

// 1. Notify the owners of the end of the context, if they will record it.
// 2. Send the step, together with learning rates that have changed since the last one.
// 3. Check that the context has lived until the end, and that no owner has refused the step.
// 4. Record the rates as delivered. After an error they stay undelivered and are sent again with the next
//    step.
void OptimizerShards::step(const ContextRef& context) {
  const rpc::Id id = live_context(*agent_, context)->id;
  const bool gathers = settings_.consistency == Consistency::kSync;
  // An owner that gathers gradients (kSync) makes the context live, so it must be notified of the end. With
  // the other settings an owner that the context has not reached does not record it.
  if (gathers) notify_of_end(*agent_, id, owners_);
  const std::vector<double> rates = unsent_rates();
  const auto missing = call_all<&OptimizerShard::step>("step", id.origin, id.counter, rates);
  // If the context ended during the step, its gradients may have been destroyed before some owner used them.
  // Throws NotFound then.
  if (!gathers) live_context(*agent_, id);
  // If this throws, owners have refused the step together with the rates.
  check_missing(missing);
  delivered(rates);
}

void OptimizerShards::check_missing(const std::vector<OptimizerShard::Missing>& missing) {
  int64_t count = 0;
  std::string first;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const auto& [missing_here, number, place] = missing[i];
    if (missing_here <= 0) continue;
    count += missing_here;
    if (!first.empty()) continue;
    // `place` is the position among the group's parameters that the owner has. It is converted to the
    // position in the whole group.
    int64_t position = place;
    for (const ParameterOwner::Group& group : owners_.at(i).groups) {
      if (static_cast<int64_t>(group.number) != number || place < 0) continue;
      const auto at = static_cast<std::size_t>(place);
      if (at < group.positions.size()) position = static_cast<int64_t>(group.positions[at]);
    }
    first = absl::StrCat("parameter ", position, " of group ", number, ", which worker \"",
                         owners_[i].worker.name, "\" owns");
  }
  if (count == 0) return;
  const std::string what = absl::StrCat(name_of("step"), ": got no gradient for ", first,
                                        count > 1 ? absl::StrCat(" (and ", count - 1, " more)") : "",
                                        ", expected one for every parameter; run the forward that uses it "
                                        "inside the Context, and call backward() in it before step()");
  if (settings_.require_gradients) throw Error(absl::FailedPreconditionError(what));
  if (warned_.exchange(true)) return;
  log(LogLevel::kWarning, what,
      " (reported once for each optimizer; ignore it if the loss does not use the parameter; "
      "DistributedOptimizerOptions::require_gradients makes this an error)");
}

at::Tensor OptimizerShards::step(const Closure& closure) {
  Context context(agent_);
  at::Tensor loss = closure(context);
  step(context);
  return loss.defined() ? loss.detach() : loss;
}

// The optimizer runs on the owner and requests evaluations; the closure must run on this thread.
// 1. Send the step to the owner, without waiting.
// 2. Until the step has ended, wait for a request and run the closure for it in a new context. The context
//    of the previous evaluation has been used by then, and is released first.
// 3. When the owner has answered, its answer ends the loop. So it ends also if the owner is lost.
// 4. Throw the closure's own exception, or the owner's error, or return the loss.
at::Tensor OptimizerShards::step_with_closure(const Closure& closure) {
  if (shards_.size() > 1) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        name_of("step"), ": ", settings_.kind,
        " searches along all parameters at once, so one worker must own all of them, but the owners are ",
        absl::StrJoin(owners_, ", ",
                      [](std::string* out, const ParameterOwner& owner) {
                        absl::StrAppend(out, "\"", owner.worker.name, "\"");
                      }),
        "; move the parameters to one worker, make one optimizer for each owner, or use another type")));
  }
  const auto turns = std::make_shared<ClosureTurns>();
  const rpc::RRef<ClosureTurns> reference(*agent_, turns);
  const std::vector<double> rates = unsent_rates();
  std::vector<Future<std::pair<at::Tensor, OptimizerShard::Missing>>> done;
  {
    ActiveContextSlot::Scope no_context(nullptr);
    done.push_back(shards_[0]
                       .with_timeout(settings_.timeout)
                       .rpc_async<&OptimizerShard::step_with_closure>(reference, rates));
  }
  done[0].on_ready_inline([turns](const auto&) { turns->end(); });
  // If this function exits by an exception, the owner's requests must not wait for a thread that is gone.
  const absl::Cleanup end = [&] { turns->end(); };
  std::exception_ptr thrown;
  // The context lives until the next turn, so that the owner can take the gradients.
  std::optional<Context> context;
  while (auto turn = turns->next()) {
    try {
      at::AutoGradMode with_graph(true);
      context.reset();
      context.emplace(agent_);
      const at::Tensor loss = closure(*context);
      if (!loss.defined()) {
        throw Error(
            absl::InvalidArgumentError("the closure returned an undefined tensor, expected the loss"));
      }
      const rpc::Id id = context->full_id();
      turn->set_value(loss.detach(), id.origin, id.counter);
    } catch (...) {
      thrown = std::current_exception();
      turn->set_error(status_from_exception(thrown));
    }
  }
  context.reset();
  // The closure's own exception has priority over the error that the owner made of it.
  if (thrown != nullptr) std::rethrow_exception(thrown);
  auto [loss, missing] = wait_for_owners(name_of("step"), owners_, done)[0];
  order_after_own_shard();
  delivered(rates);
  check_missing({missing});
  return loss;
}

void OptimizerShards::refuse_step_without_closure() const {
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      name_of("step"), ": ", settings_.kind,
      " evaluates the loss several times in a step and cannot use the gradients of one context: call "
      "step(closure), where the closure runs forward and backward in the context that it gets and returns "
      "the "
      "loss; all parameters must have one owner")));
}

std::vector<double> OptimizerShards::unsent_rates() const {
  const std::vector<double> rates = schedulers_.get();
  MutexLock lock(mutex_);
  return same_rates(rates, delivered_) ? std::vector<double>() : rates;
}

void OptimizerShards::delivered(const std::vector<double>& rates) {
  if (rates.empty()) return;
  MutexLock lock(mutex_);
  delivered_ = rates;
}

void OptimizerShards::set_learning_rates(const std::vector<double>& rates) {
  if (rates.size() != num_groups()) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(name_of("set_learning_rates"), ": got ", rates.size(),
                                                        " rates, expected ", num_groups(),
                                                        ", one for each parameter group")));
  }
  call_all<&OptimizerShard::set_learning_rates>("set_learning_rates", rates);
  schedulers_.set(rates);
  delivered(rates);
}

std::vector<double> OptimizerShards::learning_rates() {
  if (const std::vector<double> rates = unsent_rates(); !rates.empty()) set_learning_rates(rates);
  return gather_learning_rates("learning_rates");
}

std::vector<double> OptimizerShards::gather_learning_rates(absl::string_view function) const {
  std::vector<double> rates(num_groups());
  const auto answers = call_all<&OptimizerShard::learning_rates>(function);
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    for (const auto& [number, rate] : answers[i]) {
      part_of(rates, static_cast<std::size_t>(number), name_of(function), owners_[i]) = rate;
    }
  }
  return rates;
}

std::string OptimizerShards::save() {
  if (const std::vector<double> rates = unsent_rates(); !rates.empty()) set_learning_rates(rates);
  OptimizerFile file{settings_.kind, SavedGroups(num_groups())};
  for (std::size_t g = 0; g < num_groups(); ++g) file.groups[g].parameters.resize(group_sizes_[g]);
  std::vector<SavedGroups> saved = call_all<&OptimizerShard::save>("save");
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    for (std::size_t k = 0; k < owners_[i].groups.size(); ++k) {
      const ParameterOwner::Group& group = owners_[i].groups[k];
      SavedGroup& from = part_of(saved[i], k, name_of("save"), owners_[i]);
      SavedGroup& to = file.groups[group.number];
      to.options = std::move(from.options);
      for (std::size_t p = 0; p < group.positions.size(); ++p) {
        to.parameters[group.positions[p]] =
            std::move(part_of(from.parameters, p, name_of("save"), owners_[i]));
      }
    }
  }
  absl::StatusOr<std::string> bytes = write_optimizer_file(file);
  if (!bytes.ok()) throw Error(with_context(bytes.status(), name_of("save")));
  return *std::move(bytes);
}

void OptimizerShards::load(const std::string& bytes) {
  absl::StatusOr<OptimizerFile> file = read_optimizer_file(bytes);
  if (!file.ok()) throw Error(with_context(file.status(), name_of("load")));
  auto refuse = [&](const std::string& what) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(name_of("load"), ": ", what)));
  };
  if (file->kind != settings_.kind) {
    refuse(absl::StrCat("got the saved state of ", file->kind, ", expected ", settings_.kind));
  }
  if (file->groups.size() != num_groups()) {
    refuse(absl::StrCat("the saved state has ", file->groups.size(), " parameter groups, expected ",
                        num_groups()));
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (file->groups[g].parameters.size() != group_sizes_[g]) {
      refuse(absl::StrCat("group ", g, " of the saved state has ", file->groups[g].parameters.size(),
                          " parameters, expected ", group_sizes_[g]));
    }
  }
  // A load changes several owners and cannot be undone. So it has two rounds of calls: the first only asks
  // for shapes, and the second loads.
  // All shapes are compared before any owner changes its state.
  const auto shapes = call_all<&OptimizerShard::shapes>("load");
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<SavedGroups> parts(owners_.size());
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    for (std::size_t k = 0; k < owners_[i].groups.size(); ++k) {
      const ParameterOwner::Group& group = owners_[i].groups[k];
      SavedGroup& part = parts[i].emplace_back();
      part.options = file->groups[group.number].options;
      for (std::size_t p = 0; p < group.positions.size(); ++p) {
        SavedParameter& saved = file->groups[group.number].parameters[group.positions[p]];
        const auto& group_shapes = part_of(shapes[i], k, name_of("load"), owners_[i]);
        const auto& [sizes, dtype] = part_of(group_shapes, p, name_of("load"), owners_[i]);
        if (saved.sizes != sizes || saved.dtype != dtype) {
          refuse(absl::StrCat("shape mismatch of parameter ", group.positions[p], " of group ", group.number,
                              ": the saved state has ", shape_text(saved.sizes, saved.dtype),
                              ", the parameter on worker \"", owners_[i].worker.name, "\" is ",
                              shape_text(sizes, dtype)));
        }
        part.parameters.push_back(std::move(saved));
      }
    }
  }
  std::vector<Future<void>> loads;
  for (std::size_t i = 0; i < owners_.size(); ++i) {
    loads.push_back(
        shards_[i].with_timeout(settings_.timeout).rpc_async<&OptimizerShard::load>(std::move(parts[i])));
  }
  show_owners_wait(name_of("load"), names_of(owners_), loads);
  wait_for_owners(name_of("load"), owners_, loads);
  // Schedulers continue with the rates that were loaded.
  const std::vector<double> rates = gather_learning_rates("load");
  schedulers_.set(rates);
  delivered(rates);
}

}  // namespace gradwire::autograd
