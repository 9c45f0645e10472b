#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/autograd/context.h"
#include "gradwire/autograd/optimizer/learning_rates.h"
#include "gradwire/autograd/optimizer/optimizer_shard.h"
#include "gradwire/autograd/pass/parameter_owners.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/destination.h"

namespace gradwire::autograd {

// The shards of one distributed optimizer, without its type, for DistributedOptimizer<O>. Thread-safe, but
// schedulers() belongs to one thread at a time, which makes the only call then.
class OptimizerShards {
 public:
  using Closure = std::function<at::Tensor(const Context&)>;
  // Makes an owner's shard, with one call to `to`.
  using Make = std::function<Future<rpc::RRef<OptimizerShard>>(const ParameterOwner& owner,
                                                               const rpc::Destination& to)>;
  struct Settings {
    // OptimizerTraits<O>::name().
    std::string kind;
    Consistency consistency = Consistency::kWait;
    absl::Duration timeout = absl::InfiniteDuration();
    // A parameter without a gradient is an error and not a warning.
    bool require_gradients = false;
    // The rates that the groups start with.
    std::vector<double> rates;
  };

  // Makes them in one round, outside of any context. Throws Error.
  OptimizerShards(std::shared_ptr<rpc::Agent> agent, const std::vector<ParameterRefs>& groups,
                  Settings settings, const Make& make);

  // See DistributedOptimizer.
  void step(const ContextRef& context);
  // The closure runs once, then all owners step.
  at::Tensor step(const Closure& closure);
  // The owner's optimizer asks for the closure as often as it likes.
  at::Tensor step_with_closure(const Closure& closure);
  [[noreturn]] void refuse_step_without_closure() const;

  void set_learning_rates(const std::vector<double>& rates);
  std::vector<double> learning_rates();
  LearningRates& schedulers() { return schedulers_; }

  std::string save();
  void load(const std::string& bytes);

  std::size_t num_groups() const { return group_sizes_.size(); }

 private:
  // "DistributedOptimizer<SGD>::" and the function's name.
  std::string name_of(absl::string_view function) const;
  // F, a method of OptimizerShard, at every owner, outside of any context.
  template <auto F, class... A>
  auto call_all(absl::string_view function, const A&... arguments) const;
  // The owners', on behalf of `function`.
  std::vector<double> gather_learning_rates(absl::string_view function) const;
  // The rates that schedulers have set and the owners do not know yet; empty without news.
  std::vector<double> news() const;
  void delivered(const std::vector<double>& rates);
  // `missing`: one for each owner. Logs the first parameter that got no gradient, once; throws Error,
  // FailedPrecondition, where gradients are required.
  void check_missing(const std::vector<OptimizerShard::Missing>& missing);

  const std::shared_ptr<rpc::Agent> agent_;
  const Settings settings_;
  const std::vector<std::size_t> group_sizes_;
  const std::vector<ParameterOwner> owners_;
  // As `owners_`.
  std::vector<rpc::RRef<OptimizerShard>> shards_;

  LearningRates schedulers_;
  std::atomic<bool> warned_{false};

  mutable Mutex mutex_;
  // The rates that the owners got last, or were made with.
  std::vector<double> delivered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
