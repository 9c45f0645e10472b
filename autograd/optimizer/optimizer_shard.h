#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/autograd/optimizer/optimizer_archive.h"
#include "gradwire/autograd/optimizer/sync_round.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/device/device_fence.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/rref.h"

namespace gradwire::autograd {

class ClosureTurns;

// The rule for steps of several trainers on the same parameters.
enum class Consistency {
  // A step waits, up to its deadline, while another live context has a forward without its backward on the
  // owner. Contexts that arrive later wait for the step. So each gradient belongs to the parameters that its
  // forward used.
  kWait,
  // The owner gathers the gradients of all trainers, averages them and steps once.
  kSync,
  // A step never waits.
  kHogwild,
};

// The part of a distributed optimizer on one owner of parameters: libtorch's optimizer, its state, and the
// steps that wait. Distributed optimizers of several trainers that have the same name share it.
//
// Its groups are the groups of the distributed optimizer that have parameters here, each with its number in
// the distributed optimizer. A step locks only the shard itself, so shards with different parameters step at
// the same time. Thread-safe. Owned by the RRefs to it.
class OptimizerShard : public std::enable_shared_from_this<OptimizerShard> {
 public:
  using Tensors = SyncRound::Tensors;
  // Constructs libtorch's optimizer from the parameters of each group.
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensors>)>;
  // The number of a group in the distributed optimizer, and its parameters here.
  using Group = std::pair<int64_t, std::vector<rpc::RRef<at::Tensor>>>;
  // The learning rate of every group of the distributed optimizer; empty if the rates do not change.
  using Rates = SyncRound::Rates;
  using Missing = SyncRound::Missing;
  struct Settings {
    std::string name;
    // The optimizer's name on the wire.
    std::string kind;
    Consistency consistency = Consistency::kWait;
    int64_t trainers = 1;
    // A step in which a parameter has no gradient changes nothing.
    bool require_gradients = false;
    // The options of the optimizer, and the function that compares them with those of an optimizer of the
    // same kind; nullptr if they cannot be compared.
    std::shared_ptr<const void> options = nullptr;
    bool (*same_options)(const void*, const void*) = nullptr;
  };

  // Returns the shard of this name on the agent of the calling handler, and makes it if it does not exist.
  // Always makes a new one for an empty name. Throws Error, InvalidArgument, if the existing shard has
  // another kind of optimizer, other parameters, options or settings; if a parameter is undefined or listed
  // twice; or if the optimizer rejects its options or parameters.
  static rpc::RRef<OptimizerShard> make(const std::vector<Group>& groups, const Settings& settings,
                                        const MakeOptimizer& make_optimizer);

  OptimizerShard(const std::shared_ptr<rpc::Agent>& agent, Settings settings, std::vector<int64_t> groups,
                 std::vector<Tensors> parameters, std::unique_ptr<torch::optim::Optimizer> optimizer);
  ~OptimizerShard();

  // Steps with the gradients of the context {origin, counter}. Trainers call it. No message of the context
  // needs to have arrived before. Without any gradient nothing is stepped and the step does not wait (kSync:
  // the gradients count as zeros). With require_gradients nothing is stepped if a parameter has no gradient.
  // A step that times out while it waits for other trainers fails with DeadlineExceeded and names them, a
  // little before the caller's deadline (rpc/core/deadline.h).
  Future<Missing> step(uint64_t origin, uint64_t counter, const Rates& rates);
  // Steps an optimizer that evaluates the loss itself. Returns the loss that the optimizer returns, and the
  // parameters that had no gradient in its last evaluation. With require_gradients throws FailedPrecondition
  // at the first evaluation in which a parameter has no gradient.
  std::pair<at::Tensor, Missing> step_with_closure(const rpc::RRef<ClosureTurns>& closure,
                                                   const Rates& rates);

  void set_learning_rates(const Rates& rates);
  // Returns pairs of the number of a group and its learning rate.
  std::vector<std::pair<int64_t, double>> learning_rates();

  // The sizes and the dtype of each parameter of a group.
  using Shapes = std::vector<std::pair<std::vector<int64_t>, at::ScalarType>>;
  std::vector<Shapes> shapes();
  SavedGroups save();
  void load(const SavedGroups& groups);

 private:
  // Returns the gradient of each parameter; undefined if it has none.
  Tensors gradients_of(ContextState& context) const;
  // Runs `function` with exclusive use of the optimizer. Returns the error that it throws, with `what` in its
  // message.
  absl::Status with_optimizer(absl::string_view what, const std::function<void()>& function);
  // Sets `.grad` of the parameters, steps, and restores `.grad`.
  absl::Status apply(const Tensors& gradients, const Rates& rates);
  void apply_rates(const Rates& rates);
  // Steps with the gradients of the context. Does not throw.
  absl::StatusOr<Missing> step_with_gradients_of(ContextState& context, const Rates& rates);
  void step_when_admitted(const std::shared_ptr<ContextState>& context, const Rates& rates,
                          absl::Time deadline, Promise<Missing> done);
  // Adds the trainers that the step waited for, and the advice, to the barrier's error.
  absl::Status explain_wait(const absl::Status& status, const rpc::Id& context,
                            const StepBarrierDriver& barrier, const rpc::Agent& agent) const;
  Missing missing_of(const Tensors& gradients) const;
  bool refuses(const Missing& missing) const {
    return settings_.require_gradients && std::get<0>(missing) > 0;
  }

  const std::weak_ptr<rpc::Agent> agent_;
  const Settings settings_;
  const std::vector<int64_t> groups_;
  // The number of parameters that each of `groups_` has here.
  const std::vector<std::size_t> group_sizes_;
  // The parameters of all groups, concatenated.
  const Tensors parameters_;
  const StepBarrier::Parameters addresses_;
  const std::shared_ptr<SyncRound> round_;

  // Held while the optimizer is used, except by a step with a closure, which calls other workers. Such a step
  // sets `closure_runs_` instead, with the mutex held, and all other uses then fail.
  Mutex step_mutex_;
  bool closure_runs_ = false;
  // The end of the last use of the optimizer, in the streams of the thread that used it. Guarded by the
  // mutex.
  StreamFencePtr last_use_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace gradwire::autograd
