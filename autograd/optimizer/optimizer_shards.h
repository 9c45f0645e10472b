#pragma once

#include <torch/optim/optimizer.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/optimizer/optimizer_shard.h"
#include "gradwire/autograd/pass/context.h"
#include "gradwire/autograd/pass/parameter_owners.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/core/destination.h"

namespace gradwire::autograd {

// The optimizer object that libtorch's schedulers (torch/optim/schedulers) work on, in place of an optimizer
// whose parameters are on other workers. It has the same number of groups, without parameters, and their
// options are only a learning rate. step() throws Error, FailedPrecondition. Not thread-safe.
class LearningRates : public torch::optim::Optimizer {
 public:
  explicit LearningRates(const std::vector<double>& rates);

  // Returns the learning rate of each group.
  std::vector<double> get() const;
  // REQUIRES: one rate for each group.
  void set(const std::vector<double>& rates);

  torch::Tensor step(LossClosure closure = nullptr) override;
};

// The shards of one distributed optimizer. This is the part of DistributedOptimizer<O> that does not depend
// on O. Thread-safe, except schedulers(): while a thread uses it, no other thread may call any method.
class OptimizerShards {
 public:
  using Closure = std::function<at::Tensor(const Context&)>;
  // Makes the shard of an owner, with one call to `to`.
  using Make = std::function<Future<rpc::RRef<OptimizerShard>>(const ParameterOwner& owner,
                                                               const rpc::Destination& to)>;
  struct Settings {
    // OptimizerTraits<O>::name().
    std::string kind;
    Consistency consistency = Consistency::kWait;
    absl::Duration timeout = absl::InfiniteDuration();
    // A parameter without a gradient is an error instead of a warning.
    bool require_gradients = false;
    // The initial learning rates of the groups.
    std::vector<double> rates;
  };

  // Makes all shards in one round of calls, outside of any context. Throws Error.
  OptimizerShards(std::shared_ptr<rpc::Agent> agent, const std::vector<ParameterRefs>& groups,
                  Settings settings, const Make& make);

  // See DistributedOptimizer.
  void step(const ContextRef& context);
  // Runs the closure once, then steps on all owners.
  at::Tensor step(const Closure& closure);
  // Steps on the only owner, whose optimizer requests evaluations of the closure.
  at::Tensor step_with_closure(const Closure& closure);
  [[noreturn]] void refuse_step_without_closure() const;

  void set_learning_rates(const std::vector<double>& rates);
  std::vector<double> learning_rates();
  LearningRates& schedulers() { return schedulers_; }

  std::string save();
  void load(const std::string& bytes);

  std::size_t num_groups() const { return group_sizes_.size(); }

 private:
  // Returns "DistributedOptimizer<SGD>::" followed by the function's name.
  std::string name_of(absl::string_view function) const;
  // Calls F, a method of OptimizerShard, on every owner, outside of any context.
  template <auto F, class... A>
  auto call_all(absl::string_view function, const A&... arguments) const;
  // If this worker owns parameters, makes the current streams of this thread wait for the uses of its shard:
  // the next forward of this thread may use the parameters themselves, without a call.
  void order_after_own_shard() const;
  // Returns the rates that the owners have. Errors name `function`.
  std::vector<double> gather_learning_rates(absl::string_view function) const;
  // Returns the rates of the schedulers if they changed since they were last sent to the owners, otherwise an
  // empty list.
  std::vector<double> unsent_rates() const;
  // Records that the owners have these rates. Does nothing for an empty list.
  void delivered(const std::vector<double>& rates);
  // Checks the answers of the owners to a step. If a parameter had no gradient, logs a warning that names the
  // first one, once for each optimizer; with require_gradients throws Error, FailedPrecondition.
  void check_missing(const std::vector<OptimizerShard::Missing>& missing);

  const std::shared_ptr<rpc::Agent> agent_;
  const Settings settings_;
  const std::vector<std::size_t> group_sizes_;
  const std::vector<ParameterOwner> owners_;
  // The shard of each of `owners_`.
  std::vector<rpc::RRef<OptimizerShard>> shards_;

  LearningRates schedulers_;
  std::atomic<bool> warned_{false};

  mutable Mutex mutex_;
  // The rates that the owners got last, at first in the constructor.
  std::vector<double> delivered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
