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

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/autograd/clip_grad.h"
#include "gradwire/autograd/optimizer/optimizer_shard.h"
#include "gradwire/autograd/optimizer/optimizer_shards.h"
#include "gradwire/autograd/optimizer_options.h"
#include "gradwire/autograd/pass/context.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/registry/registration.h"

namespace gradwire::autograd {

// Options of a DistributedOptimizer, in addition to those of O itself.
struct DistributedOptimizerOptions {
  // See autograd/optimizer/optimizer_shard.h.
  Consistency consistency = Consistency::kWait;
  // Number of trainers whose gradients kSync gathers.
  int64_t trainers = 1;
  // Optimizers of several trainers with the same name share one optimizer and its state on each owner. If
  // empty, the optimizer is not shared.
  std::string name;
  // Limit for a step (with a closure: for all of its evaluations), for construction, and for any other call
  // of the optimizer.
  absl::Duration timeout = absl::Seconds(60);
  // If false, a step in which a parameter has no gradient (kSync: from any trainer) logs a warning once for
  // each optimizer. The warning names the parameter and its owner; the usual cause is a forward outside the
  // context. If true, such a step throws FailedPrecondition, and an owner that lacks a gradient does not
  // step.
  bool require_gradients = false;
};

// A group of parameters, on any owners, that may have options of its own.
template <class Options>
struct ParameterGroup {
  std::vector<rpc::RRef<at::Tensor>> parameters;  // A parameter may be in one group only.
  std::optional<Options> options;                 // If empty, the optimizer's default options.
};

namespace optimizer_internal {

// The settings in a request to an owner: name, consistency, trainers, require_gradients.
using WireSettings = std::tuple<std::string, Consistency, int64_t, bool>;

// The options that an owner's optimizer was constructed with.
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
      throw Error(
          absl::InvalidArgumentError("the optimizer has no constructor for parameter groups "
                                     "(std::vector<OptimizerParamGroup>, Options); use one group"));
    }
    return std::make_unique<O>(std::move(parameters[0]), with.groups.at(0));
  }
}

// The factory that each owner runs. `options` has one element for each group.
template <class O>
rpc::RRef<OptimizerShard> make_shard(const std::vector<OptimizerShard::Group>& groups,
                                     const std::vector<typename OptimizerTraits<O>::Options>& options,
                                     const typename OptimizerTraits<O>::Options& defaults,
                                     const WireSettings& settings) {
  using Options = typename OptimizerTraits<O>::Options;
  if (groups.empty() || options.size() != groups.size()) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("malformed request to make an optimizer: got options for ", options.size(),
                     " parameter groups, expected ", groups.size(), ", at least one")));
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

// NaN if the options have no learning rate.
template <class Options>
double learning_rate_of(const Options& options) {
  if constexpr (std::is_base_of_v<torch::optim::OptimizerOptions, Options>) {
    try {
      return options.get_lr();
    } catch (const c10::Error&) {
      // These options have no learning rate.
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// Whether O evaluates the loss during step(). A custom optimizer declares it in its OptimizerTraits:
// static constexpr bool kNeedsClosure = true.
template <class O>
constexpr bool needs_closure() {
  if constexpr (requires { OptimizerTraits<O>::kNeedsClosure; }) {
    return OptimizerTraits<O>::kNeedsClosure;
  } else {
    return false;
  }
}

}  // namespace optimizer_internal

// An optimizer whose parameters live on any number of workers. Each owner of parameters has an optimizer of
// type O for them (from torch::optim, or a custom one registered with GRADWIRE_OPTIMIZER), and all of these
// step in one round with the gradients of a context. A zero_grad method is not needed, because a context owns
// its gradients and destroys them when it ends.
//
// A parameter without a gradient in the context does not change, and its state does not either, as in
// torch::optim. An owner without any gradient does nothing.
//
// All methods throw Error, whose message names the function and the worker: NotFound (the context is unknown
// or released), DeadlineExceeded (kWait: another context did not run its backward in time; kSync: a trainer
// did not step in time), Unavailable (an owner, or with kSync a trainer, was lost), Unknown (the optimizer
// threw), FailedPrecondition (require_gradients is set and a parameter has no gradient). If one owner fails,
// the others may have stepped.
//
// Thread-safe, except for construction, destruction and schedulers. Copies refer to the same optimizer.
template <class O>
class DistributedOptimizer {
 public:
  // The options that O is constructed with, for example torch::optim::SGDOptions.
  using Options = typename OptimizerTraits<O>::Options;
  // Parameters on any workers.
  using Parameters = std::vector<rpc::RRef<at::Tensor>>;
  // A function that runs forward and backward in the context that it gets, which is current, and returns the
  // loss.
  using Closure = OptimizerShards::Closure;

  // A group of parameters with options of its own.
  using Group = ParameterGroup<Options>;

  // Constructs an O on every owner and returns when all exist. Uses Agent::current(). Throws Error,
  // InvalidArgument, if an optimizer of that name exists with another type, other options, consistency,
  // number of trainers or parameters; if there are no parameters, or a parameter is listed twice; or if O
  // rejects its options.
  DistributedOptimizer(const Parameters& parameters, const Options& options,
                       const DistributedOptimizerOptions& settings = {})
      : DistributedOptimizer(std::vector<Group>{Group{parameters, std::nullopt}}, options, settings) {}
  // Same as the first constructor, with groups. `defaults` are the options of groups without their own.
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
  // FailedPrecondition for an optimizer that evaluates the loss itself, as LBFGS does: use step(closure).
  void step(const ContextRef& context) {
    if constexpr (kNeedsClosure) {
      shards_->refuse_step_without_closure();
    } else {
      shards_->step(context);
    }
  }

  // Same as torch::optim's step(closure): evaluates the closure on this thread, in a fresh context each time,
  // then steps. Returns the loss of the first evaluation. LBFGS evaluates the closure as often as its options
  // allow and ignores other trainers' forwards in the meantime; FailedPrecondition if its parameters have
  // more than one owner. Rethrows an exception of the closure unchanged.
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
  // Returns the learning rate of each group from the owners; NaN if O has no learning rate.
  std::vector<double> learning_rates() { return shards_->learning_rates(); }

  // The object to pass to libtorch's schedulers and to classes derived from its LRScheduler:
  //   torch::optim::StepLR schedule(optimizer.schedulable(), /*step_size=*/30, /*gamma=*/0.1);
  // It has this optimizer's groups with their learning rates, but no parameters. The rates that a scheduler
  // sets are sent with the next step, without an extra call. Must not be used while another thread is in a
  // call of this optimizer. Lives as long as the optimizer.
  torch::optim::Optimizer& schedulable() { return shards_->schedulers(); }

  // Returns the options of all groups and the state of all parameters, from all owners, as bytes. Throws
  // Error, Unimplemented, if O does not save itself as libtorch's optimizers do.
  std::string save() { return shards_->save(); }
  // Restores the options and states that `bytes` contain, so that training continues as if it had not
  // stopped. The caller must save the parameters, and the position of a scheduler in its schedule. A
  // parameter is identified by its group and its position in the group, so its owner may have changed. Throws
  // Error, InvalidArgument, before anything is changed, if the bytes were modified, or if they belong to
  // another optimizer or to parameters of another number, shape or dtype. REQUIRES: no trainer is in a step.
  void load(const std::string& bytes) { shards_->load(bytes); }

 private:
  static constexpr bool kNeedsClosure = optimizer_internal::needs_closure<O>();

  std::shared_ptr<OptimizerShards> shards_;
};

}  // namespace gradwire::autograd

// Registers the optimizer type O, so that owners can construct it. Use it at namespace scope, in a library
// that the programs of trainers and owners both link with alwayslink.
#define GRADWIRE_OPTIMIZER(O)                                                                      \
  GRADWIRE_RPC_AS(                                                                                 \
      std::string("gradwire::autograd::make_") + ::gradwire::autograd::OptimizerTraits<O>::name(), \
      &::gradwire::autograd::optimizer_internal::make_shard<O>)
