#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "autograd/context.h"
#include "autograd/optimizer_options.h"
#include "autograd/optimizer_shard.h"
#include "rpc/call.h"
#include "rpc/registration.h"
#include "rpc/tensor_codec.h"

namespace gradwire::autograd {

struct DistributedOptimizerOptions {
  // See optimizer_shard.h.
  Consistency consistency = Consistency::kWait;
  // How many trainers kSync gathers.
  int64_t trainers = 1;
  // Optimizers of several trainers with the same name share one optimizer and its state on each owner. Empty:
  // its own.
  std::string name;
  // How long a step, or the making of the optimizer, may take.
  absl::Duration timeout = absl::Seconds(60);
};

namespace optimizer_internal {

// The factory that each owner runs.
template <class O>
rpc::RRef<OptimizerShard> make_shard(const std::vector<rpc::RRef<at::Tensor>>& parameters,
                                     const typename OptimizerTraits<O>::Options& options,
                                     const std::string& name, Consistency consistency, int64_t trainers) {
  return OptimizerShard::make(
      parameters, {name, OptimizerTraits<O>::name(), consistency, trainers},
      [&options](std::vector<at::Tensor> tensors) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<O>(std::move(tensors), options);
      });
}

// Parameters by owner, in the order in which the owners first appear.
struct Owner {
  rpc::WorkerInfo worker;
  std::vector<rpc::RRef<at::Tensor>> parameters;
};
std::vector<Owner> by_owner(const std::vector<rpc::RRef<at::Tensor>>& parameters);

// The shards of one optimizer, without its type.
class Shards {
 public:
  Shards(std::shared_ptr<rpc::Agent> agent, std::vector<rpc::RRef<OptimizerShard>> shards,
         absl::Duration timeout);
  void step(const ContextRef& context);
  void set_learning_rate(double rate);

 private:
  const std::shared_ptr<rpc::Agent> agent_;
  const std::vector<rpc::RRef<OptimizerShard>> shards_;
  const absl::Duration timeout_;
};

// Makes `make(owner)` for each owner in one round, outside of any context.
Shards make_shards(
    const std::shared_ptr<rpc::Agent>& agent, const std::vector<rpc::RRef<at::Tensor>>& parameters,
    absl::Duration timeout,
    const std::function<Future<rpc::RRef<OptimizerShard>>(const Owner&, const rpc::Destination&)>& make);

[[noreturn]] void refuse_closure_optimizer(const char* name);

template <class O>
inline constexpr bool kNeedsClosure = std::is_same_v<O, torch::optim::LBFGS>;

}  // namespace optimizer_internal

// An optimizer O (torch::optim's, or one's own registered with GRADWIRE_OPTIMIZER) whose parameters live on
// any number of workers: an O beside the parameters on each owner, all stepped in one round with the
// gradients of a context.
//
// step() throws Error: NotFound (the context is unknown or released), DeadlineExceeded (kWait: other
// contexts' backward did not come; kSync: not every trainer came), Unavailable (an owner, or with kSync a
// trainer, was lost), Unknown (the optimizer threw). Parameters without a gradient in the context stay as
// they are, as in torch::optim. Where one owner fails the others may have stepped. Thread-safe but for
// construction and destruction.
template <class O>
class DistributedOptimizer {
 public:
  using Options = typename OptimizerTraits<O>::Options;

  // Returns when every owner has its part. Acts on Agent::current(). Throws Error, InvalidArgument, where an
  // optimizer of that name exists with another type, consistency, number of trainers or parameters.
  DistributedOptimizer(const std::vector<rpc::RRef<at::Tensor>>& parameters, const Options& options,
                       const DistributedOptimizerOptions& settings = {})
      : shards_(optimizer_internal::make_shards(
            rpc::Agent::current(), parameters, settings.timeout,
            [&](const optimizer_internal::Owner& owner, const rpc::Destination& to) {
              return rpc::Agent::current()->rpc_async<&optimizer_internal::make_shard<O>>(
                  to, owner.parameters, options, settings.name, settings.consistency, settings.trainers);
            })) {}

  // Returns when all owners have stepped with the gradients of `context` (kSync: of all trainers' contexts).
  // An optimizer that evaluates the loss itself, LBFGS, cannot step so: FailedPrecondition.
  void step(const ContextRef& context) {
    if constexpr (optimizer_internal::kNeedsClosure<O>) {
      optimizer_internal::refuse_closure_optimizer(OptimizerTraits<O>::name());
    } else {
      shards_.step(context);
    }
  }

  // Of all parameters from the next step on: what a learning-rate schedule calls.
  void set_learning_rate(double rate) { shards_.set_learning_rate(rate); }

 private:
  optimizer_internal::Shards shards_;
};

// Scales the gradients of these parameters in the context so that their norm, all taken as one vector, is at
// most `max_norm`; returns the norm they had. As torch::nn::utils::clip_grad_norm_, across owners. Throws
// Error.
double clip_grad_norm_(const ContextRef& context, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                       double max_norm, double norm_type = 2.0);

}  // namespace gradwire::autograd

// At namespace scope, in a library that both programs link with alwayslink: lets owners make optimizers of
// type O.
#define GRADWIRE_OPTIMIZER(O)                                                                      \
  GRADWIRE_RPC_AS(                                                                                 \
      std::string("gradwire::autograd::make_") + ::gradwire::autograd::OptimizerTraits<O>::name(), \
      &::gradwire::autograd::optimizer_internal::make_shard<O>)
