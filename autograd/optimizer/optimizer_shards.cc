#include "gradwire/autograd/optimizer/optimizer_shards.h"

#include <ATen/core/grad_mode.h>

#include <exception>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/autograd/context/active_context.h"
#include "gradwire/autograd/optimizer/optimizer_closure.h"
#include "gradwire/autograd/optimizer/optimizer_file.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/registration.h"

namespace gradwire::autograd {

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
  if (groups.empty()) refuse("it needs parameters");
  std::vector<std::size_t> sizes;
  for (const ParameterRefs& group : groups) {
    if (group.empty()) refuse(absl::StrCat("group ", sizes.size(), " has no parameters"));
    sizes.push_back(group.size());
  }
  return sizes;
}

// Rates are compared as they are: what a custom optimizer has no rate for is NaN.
bool same_rates(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x == y || (x != x && y != y); });
}

std::string shape_text(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  return absl::StrCat(c10::toString(dtype), "[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace

template <auto F, class... A>
auto OptimizerShards::call_all(absl::string_view function, const A&... arguments) const {
  using Result = decltype(shards_[0].rpc_async<F>(arguments...));
  ActiveContextSlot::Scope no_context(nullptr);
  std::vector<Result> calls;
  for (const auto& shard : shards_) {
    calls.push_back(shard.with_timeout(settings_.timeout).template rpc_async<F>(arguments...));
  }
  return wait_for_owners(name_of(function), owners_, calls);
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

void OptimizerShards::step(const ContextRef& context) {
  const rpc::Id id = live_context(*agent_, context)->id;
  const bool gathers = settings_.consistency == Consistency::kSync;
  // An owner that gathers keeps the context in its books; any other that it has not reached has no gradient.
  if (gathers) tell_of_end(*agent_, id, owners_);
  const std::vector<double> rates = news();
  const auto missing = call_all<&OptimizerShard::step>("step", id.origin, id.counter, rates);
  // A context that ends during the step takes its gradients along before some owner has used them.
  if (!gathers) live_context(*agent_, id);
  // Where it throws, owners have refused the step, and the rates with it.
  check_missing(missing);
  delivered(rates);
}

void OptimizerShards::check_missing(const std::vector<OptimizerShard::Missing>& missing) {
  int64_t count = 0;
  std::string first;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const auto& [here, number, place] = missing[i];
    if (here <= 0) continue;
    count += here;
    if (!first.empty()) continue;
    // The owner knows the parameter by its place among those of the group that it has.
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
                                        ", expected one for every parameter; make the forward that uses it "
                                        "inside the Context, and call backward() "
                                        "in it before step()");
  if (settings_.require_gradients) throw Error(absl::FailedPreconditionError(what));
  if (warned_.exchange(true)) return;
  log(LogLevel::kWarning, what,
      " (reported once for each optimizer; a parameter that the loss does not use needs nothing; "
      "DistributedOptimizerOptions::require_gradients makes this an error)");
}

at::Tensor OptimizerShards::step(const Closure& closure) {
  Context context(agent_);
  at::Tensor loss = closure(context);
  step(context);
  return loss.defined() ? loss.detach() : loss;
}

at::Tensor OptimizerShards::step_with_closure(const Closure& closure) {
  if (shards_.size() > 1) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        name_of("step"), ": ", settings_.kind,
        " searches along all parameters at once, so one worker has to own them, and these are owned by ",
        absl::StrJoin(owners_, ", ",
                      [](std::string* out, const ParameterOwner& owner) {
                        absl::StrAppend(out, "\"", owner.worker.name, "\"");
                      }),
        "; move them to one, make an optimizer for each owner's, or use another optimizer")));
  }
  const auto turns = std::make_shared<ClosureTurns>();
  const rpc::RRef<ClosureTurns> reference(*agent_, turns);
  const std::vector<double> rates = news();
  std::vector<Future<std::pair<at::Tensor, OptimizerShard::Missing>>> done;
  {
    ActiveContextSlot::Scope no_context(nullptr);
    done.push_back(shards_[0]
                       .with_timeout(settings_.timeout)
                       .rpc_async<&OptimizerShard::step_with_closure>(reference, rates));
  }
  done[0].on_ready_inline([turns](const auto&) { turns->end(); });
  // However this ends: an owner that still asks must not wait for nobody.
  const absl::Cleanup end = [&] { turns->end(); };
  std::exception_ptr thrown;
  // Lives until the next turn, for the owner to take the gradients.
  std::optional<Context> context;
  while (auto turn = turns->next()) {
    try {
      at::AutoGradMode with_graph(true);
      context.reset();
      context.emplace(agent_);
      const at::Tensor loss = closure(*context);
      if (!loss.defined()) {
        throw Error(absl::InvalidArgumentError("the closure returned an undefined tensor, not the loss"));
      }
      const rpc::Id id = context->full_id();
      turn->set_value(loss.detach(), id.origin, id.counter);
    } catch (...) {
      thrown = std::current_exception();
      turn->set_error(status_from_exception(thrown));
    }
  }
  context.reset();
  // The closure's own exception, not the error that came back from the owner.
  if (thrown != nullptr) std::rethrow_exception(thrown);
  auto [loss, missing] = wait_for_owners(name_of("step"), owners_, done)[0];
  delivered(rates);
  check_missing({missing});
  return loss;
}

void OptimizerShards::refuse_step_without_closure() const {
  throw Error(absl::FailedPreconditionError(absl::StrCat(
      name_of("step"), ": ", settings_.kind,
      " evaluates the loss several times in a step, which the gradients of one context do not allow: call "
      "step(closure), whose closure runs forward and backward in the context that it is given and returns "
      "the loss; all parameters must have one owner")));
}

std::vector<double> OptimizerShards::news() const {
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
    throw Error(absl::InvalidArgumentError(absl::StrCat(name_of("set_learning_rates"), ": ", rates.size(),
                                                        " rates for ", num_groups(), " parameter groups")));
  }
  call_all<&OptimizerShard::set_learning_rates>("set_learning_rates", rates);
  schedulers_.set(rates);
  delivered(rates);
}

std::vector<double> OptimizerShards::learning_rates() {
  if (const std::vector<double> rates = news(); !rates.empty()) set_learning_rates(rates);
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
  if (const std::vector<double> rates = news(); !rates.empty()) set_learning_rates(rates);
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
  if (file->kind != settings_.kind) refuse(absl::StrCat("this is the state of a ", file->kind));
  if (file->groups.size() != num_groups()) {
    refuse(absl::StrCat("the saved state has ", file->groups.size(), " parameter groups, this optimizer ",
                        num_groups()));
  }
  for (std::size_t g = 0; g < num_groups(); ++g) {
    if (file->groups[g].parameters.size() != group_sizes_[g]) {
      refuse(absl::StrCat("group ", g, " of the saved state has ", file->groups[g].parameters.size(),
                          " parameters, that of this optimizer ", group_sizes_[g]));
    }
  }
  // All is compared before anything is changed anywhere.
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
          refuse(absl::StrCat("parameter ", group.positions[p], " of group ", group.number, ", on worker \"",
                              owners_[i].worker.name, "\", is a ", shape_text(sizes, dtype),
                              ", in the saved state a ", shape_text(saved.sizes, saved.dtype)));
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
  wait_for_owners(name_of("load"), owners_, loads);
  // Schedulers go on from what was loaded.
  const std::vector<double> rates = gather_learning_rates("load");
  schedulers_.set(rates);
  delivered(rates);
}

}  // namespace gradwire::autograd
