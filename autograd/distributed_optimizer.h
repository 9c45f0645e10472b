#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/clip_grad.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/optimizer/optimizer_shard.h"
#include "gradwire/autograd/optimizer/optimizer_shards.h"
#include "gradwire/autograd/optimizer_options.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/call.h"
#include "gradwire/rpc/registration.h"

namespace gradwire::autograd {

// How a DistributedOptimizer steps, beside the options of O itself.
struct DistributedOptimizerOptions {
  // See autograd/optimizer/optimizer_shard.h.
  Consistency consistency = Consistency::kWait;
  // How many trainers kSync gathers.
  int64_t trainers = 1;
  // Optimizers of several trainers with the same name share one optimizer and its state on each owner. Empty:
  // its own.
  std::string name;
  // How long a step (with a closure: all of its evaluations), the making of the optimizer, or any other call
  // of its may take.
  absl::Duration timeout = absl::Seconds(60);
  // A step in which a parameter has no gradient (kSync: from no trainer) logs a warning, once for each
  // optimizer, that names the parameter and its owner: the usual cause is a forward outside the context. With
  // this it throws FailedPrecondition instead, and an owner that lacks a gradient does not step.
  bool require_gradients = false;
};

// Parameters with options of their own, on any owners; without: the optimizer's.
template <class Options>
struct ParameterGroup {
  std::vector<rpc::RRef<at::Tensor>> parameters;  // No parameter is in two groups.
  std::optional<Options> options;                 // None: the optimizer's.
};

namespace optimizer_internal {

// Name, consistency, trainers, require_gradients.
using WireSettings = std::tuple<std::string, Consistency, int64_t, bool>;

// The options that an owner's optimizer is made with.
template <class Options>
struct MadeWith {
  std::vector<Options> groups;
  Options defaults;
};

template <class Options>
bool same_options(const void* a, const void* b) {
  const auto& x = *static_cast<const MadeWith<Options>*>(a);
  const auto& y = *static_cast<const MadeWith<Options>*>(b);
  return x.defaults == y.defaults && x.groups == y.groups;
}

template <class O, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<OptimizerShard::Tensors> parameters,
                                                        const MadeWith<Options>& with) {
  if constexpr (std::is_constructible_v<O, std::vector<torch::optim::OptimizerParamGroup>, Options>) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      groups.emplace_back(std::move(parameters[i]), std::make_unique<Options>(with.groups.at(i)));
    }
    return std::make_unique<O>(std::move(groups), with.defaults);
  } else {
    if (parameters.size() != 1) {
      throw Error(absl::InvalidArgumentError(
          "it has no constructor that takes parameter groups (std::vector<OptimizerParamGroup>, Options)"));
    }
    return std::make_unique<O>(std::move(parameters[0]), with.groups.at(0));
  }
}

// The factory that each owner runs. `options`: of each group.
template <class O>
rpc::RRef<OptimizerShard> make_shard(const std::vector<OptimizerShard::Group>& groups,
                                     const std::vector<typename OptimizerTraits<O>::Options>& options,
                                     const typename OptimizerTraits<O>::Options& defaults,
                                     const WireSettings& settings) {
  using Options = typename OptimizerTraits<O>::Options;
  if (groups.empty() || options.size() != groups.size()) {
    throw Error(absl::InvalidArgumentError("each group of parameters needs its options"));
  }
  const auto with = std::make_shared<const MadeWith<Options>>(MadeWith<Options>{options, defaults});
  OptimizerShard::Settings made{std::get<0>(settings),
                                OptimizerTraits<O>::name(),
                                std::get<1>(settings),
                                std::get<2>(settings),
                                std::get<3>(settings),
                                with,
                                nullptr};
  if constexpr (requires { options[0] == options[0]; }) made.same_options = &same_options<Options>;
  return OptimizerShard::make(groups, made, [&](std::vector<OptimizerShard::Tensors> parameters) {
    return make_optimizer<O>(std::move(parameters), *with);
  });
}

template <class Options>
double learning_rate_of(const Options& options) {
  if constexpr (std::is_base_of_v<torch::optim::OptimizerOptions, Options>) {
    try {
      return options.get_lr();
    } catch (const c10::Error&) {
      // It has none.
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// An optimizer of one's own says so in its traits: static constexpr bool kNeedsClosure = true.
template <class O>
constexpr bool needs_closure() {
  if constexpr (requires { OptimizerTraits<O>::kNeedsClosure; }) {
    return OptimizerTraits<O>::kNeedsClosure;
  } else {
    return false;
  }
}

}  // namespace optimizer_internal

// An optimizer O (torch::optim's, or one's own registered with GRADWIRE_OPTIMIZER) whose parameters live on
// any number of workers: an O beside the parameters on each owner, all stepped in one round with the
// gradients of a context. There is nothing to set to zero: gradients live and die with their contexts.
//
// A parameter without a gradient in the context stays as it is, its state too, as in torch::optim; an owner
// without any does nothing.
//
// All of it throws Error, whose message names the function and the worker: NotFound (the context is unknown
// or released), DeadlineExceeded (kWait: other contexts' backward did not come; kSync: not every trainer
// came), Unavailable (an owner, or with kSync a trainer, was lost), Unknown (the optimizer threw),
// FailedPrecondition (require_gradients, and a parameter has none). Where one owner fails the others may have
// stepped.
//
// Thread-safe but for construction and destruction, and for schedulers. Copies refer to the same optimizer.
template <class O>
class DistributedOptimizer {
 public:
  // The options that O is constructed with, for example torch::optim::SGDOptions.
  using Options = typename OptimizerTraits<O>::Options;
  // Parameters on any workers.
  using Parameters = std::vector<rpc::RRef<at::Tensor>>;
  // Runs forward and backward in the context that it is given, which is current, and returns the loss.
  using Closure = OptimizerShards::Closure;

  // Some of the parameters, with options of their own.
  using Group = ParameterGroup<Options>;

  // Returns when every owner has its part. Acts on Agent::current(). Throws Error, InvalidArgument, where an
  // optimizer of that name exists with another type, options, consistency, number of trainers or parameters;
  // without parameters, or with one twice; or where O does not accept its options.
  DistributedOptimizer(const Parameters& parameters, const Options& options,
                       const DistributedOptimizerOptions& settings = {})
      : DistributedOptimizer(std::vector<Group>{Group{parameters, std::nullopt}}, options, settings) {}
  // As the first constructor, with groups; `defaults` are the options of those without their own.
  DistributedOptimizer(const std::vector<Group>& groups, const Options& defaults,
                       const DistributedOptimizerOptions& settings = {}) {
    OptimizerShards::Settings shared{
        OptimizerTraits<O>::name(), settings.consistency, settings.timeout, settings.require_gradients, {}};
    std::vector<Parameters> parameters;
    std::vector<Options> options;
    for (const Group& group : groups) {
      parameters.push_back(group.parameters);
      options.push_back(group.options.value_or(defaults));
      shared.rates.push_back(optimizer_internal::learning_rate_of(options.back()));
    }
    const std::shared_ptr<rpc::Agent> agent = rpc::Agent::current();
    shards_ = std::make_shared<OptimizerShards>(
        agent, parameters, std::move(shared), [&](const ParameterOwner& owner, const rpc::Destination& to) {
          std::vector<OptimizerShard::Group> own_groups;
          std::vector<Options> own_options;
          for (const ParameterOwner::Group& group : owner.groups) {
            own_groups.emplace_back(static_cast<int64_t>(group.number), group.parameters);
            own_options.push_back(options.at(group.number));
          }
          return agent->rpc_async<&optimizer_internal::make_shard<O>>(
              to, own_groups, own_options, defaults,
              optimizer_internal::WireSettings(settings.name, settings.consistency, settings.trainers,
                                               settings.require_gradients));
        });
  }

  // Returns when all owners have stepped with the gradients of `context` (kSync: of all trainers' contexts).
  // An optimizer that evaluates the loss itself, LBFGS, cannot step so: FailedPrecondition.
  void step(const ContextRef& context) {
    if constexpr (kNeedsClosure) {
      shards_->refuse_step_without_closure();
    } else {
      shards_->step(context);
    }
  }

  // As torch::optim's step(closure): evaluates the closure, on this thread and in a fresh context each time,
  // and steps; returns the loss of the first evaluation. LBFGS evaluates it as often as its options allow,
  // and takes no notice of other trainers' forwards meanwhile; one worker must own all its parameters:
  // FailedPrecondition. An exception of the closure comes out as it is.
  at::Tensor step(const Closure& closure) {
    if constexpr (kNeedsClosure) {
      return shards_->step_with_closure(closure);
    } else {
      return shards_->step(closure);
    }
  }

  // Sets the learning rates, one for each group, from the next step on.
  void set_learning_rates(const std::vector<double>& rates) { shards_->set_learning_rates(rates); }
  // Sets the same learning rate for all groups, from the next step on.
  void set_learning_rate(double rate) {
    shards_->set_learning_rates(std::vector<double>(shards_->num_groups(), rate));
  }
  // As the owners have them; NaN where O has none.
  std::vector<double> learning_rates() { return shards_->learning_rates(); }

  // An optimizer for libtorch's schedulers and those derived from its LRScheduler:
  //   torch::optim::StepLR schedule(optimizer.schedulable(), /*step_size=*/30, /*gamma=*/0.1);
  // It has this optimizer's groups, with their learning rates and nothing else. The rates that a scheduler
  // sets travel with the next step, without a call of its own. Not to be used while another thread is in a
  // call of this optimizer. Lives as long as the optimizer.
  torch::optim::Optimizer& schedulable() { return shards_->schedulers(); }

  // The options of all groups and the state of all parameters, from all owners, as bytes. Throws Error:
  // Unimplemented where O does not save itself as libtorch's optimizers do.
  std::string save() { return shards_->save(); }
  // Makes them what they were when `bytes` were saved, so that training goes on as if it had not stopped
  // (parameters, and the place of a scheduler in its schedule, are for the caller to save). Each parameter is
  // known by its group and its place there; who owns it may have changed. Throws Error, InvalidArgument,
  // before anything is changed, where the bytes were changed, or come from another optimizer or from
  // parameters of other number, shape or dtype. No steps may be under way, of other trainers neither.
  void load(const std::string& bytes) { shards_->load(bytes); }

 private:
  static constexpr bool kNeedsClosure = optimizer_internal::needs_closure<O>();

  std::shared_ptr<OptimizerShards> shards_;
};

}  // namespace gradwire::autograd

// At namespace scope, in a library that both programs link with alwayslink: lets owners make optimizers of
// type O.
#define GRADWIRE_OPTIMIZER(O)                                                                      \
  GRADWIRE_RPC_AS(                                                                                 \
      std::string("gradwire::autograd::make_") + ::gradwire::autograd::OptimizerTraits<O>::name(), \
      &::gradwire::autograd::optimizer_internal::make_shard<O>)
