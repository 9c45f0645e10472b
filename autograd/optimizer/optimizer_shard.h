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
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::autograd {

class ClosureTurns;

// How steps of several trainers on the same parameters go together.
enum class Consistency {
  // A step waits, within its deadline, while another live context has a forward without its backward on the
  // owner, and contexts that come later wait for the step: every gradient is that of the parameters its
  // forward saw.
  kWait,
  // The owner gathers the gradients of all trainers, averages them and steps once.
  kSync,
  // Steps come as they come.
  kHogwild,
};

// The part of a distributed optimizer that lives beside the parameters of one owner: the optimizer proper,
// its state, and whoever waits for a step. Shared by the optimizers of several trainers that have one name.
//
// Its groups are those of the distributed optimizer that have parameters here; each knows its number there.
// Nothing is locked but the shard itself: shards with different parameters step at the same time.
// Thread-safe; owned by the RRefs to it.
class OptimizerShard : public std::enable_shared_from_this<OptimizerShard> {
 public:
  using Tensors = SyncRound::Tensors;
  // From the parameters of each group.
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensors>)>;
  // The number of a group in the distributed optimizer, and its parameters here.
  using Group = std::pair<int64_t, std::vector<rpc::RRef<at::Tensor>>>;
  // The learning rate of every group of the distributed optimizer; empty: as before.
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
    // The options of the optimizer, and their comparison with another's of the same kind; nullptr: they
    // cannot be compared.
    std::shared_ptr<const void> options = nullptr;
    bool (*same_options)(const void*, const void*) = nullptr;
  };

  // The shard of this name on the calling handler's agent, made if there is none; a fresh one where the name
  // is empty. Throws Error, InvalidArgument, where the one there is has another optimizer, parameters,
  // options or settings; where a parameter is undefined or there twice; and with what the optimizer says of
  // its options and parameters.
  static rpc::RRef<OptimizerShard> make(const std::vector<Group>& groups, const Settings& settings,
                                        const MakeOptimizer& make_optimizer);

  OptimizerShard(const std::shared_ptr<rpc::Agent>& agent, Settings settings, std::vector<int64_t> groups,
                 std::vector<Tensors> parameters, std::unique_ptr<torch::optim::Optimizer> optimizer);
  ~OptimizerShard();

  // Called by trainers. The context is {origin, counter}: it may be one that has not been here. Without a
  // gradient nothing is stepped, and the step does not wait (kSync: counts as zeros). With require_gradients
  // nothing is stepped either if one parameter lacks its gradient. A step that waits in vain for other
  // trainers fails with DeadlineExceeded that names them, a little before the caller's deadline
  // (rpc/caller/answer_by.h).
  Future<Missing> step(uint64_t origin, uint64_t counter, const Rates& rates);
  // A step of an optimizer that evaluates the loss itself; returns the loss that it returns, and what had no
  // gradient in its last evaluation. With require_gradients throws FailedPrecondition at the first such
  // evaluation.
  std::pair<at::Tensor, Missing> step_with_closure(const rpc::RRef<ClosureTurns>& closure,
                                                   const Rates& rates);

  void set_learning_rates(const Rates& rates);
  // By number of group.
  std::vector<std::pair<int64_t, double>> learning_rates();

  // The sizes and dtype of each parameter, by group.
  using Shapes = std::vector<std::pair<std::vector<int64_t>, at::ScalarType>>;
  std::vector<Shapes> shapes();
  SavedGroups save();
  void load(const SavedGroups& groups);

 private:
  // One for each parameter; those without one undefined.
  Tensors gradients_of(ContextState& context) const;
  // Runs `function` with exclusive use of the optimizer. Returns the error that it throws, marked with
  // `what`.
  absl::Status with_optimizer(absl::string_view what, const std::function<void()>& function);
  // Sets the gradients, steps, and sets back what was there.
  absl::Status apply(const Tensors& gradients, const Rates& rates);
  void apply_rates(const Rates& rates);
  void step_when_admitted(const std::shared_ptr<ContextState>& context, const Rates& rates,
                          absl::Time deadline, Promise<Missing> done);
  // Adds to what the barrier says whom the step waited for, and what to do.
  absl::Status explain_wait(const absl::Status& status, const rpc::Id& context,
                            const StepBarrierDriver& barrier, const rpc::Agent& agent) const;
  Missing missing_of(const Tensors& gradients) const;
  bool refuses(const Missing& missing) const {
    return settings_.require_gradients && std::get<0>(missing) > 0;
  }

  const std::weak_ptr<rpc::Agent> agent_;
  const Settings settings_;
  const std::vector<int64_t> groups_;
  // As `groups_`: how many parameters each has here.
  const std::vector<std::size_t> group_sizes_;
  // The parameters of all groups, one after the other.
  const Tensors parameters_;
  const StepBarrier::Parameters addresses_;
  const std::shared_ptr<SyncRound> round_;

  // Held while the optimizer steps, but not by a step with a closure, which calls others: it keeps the rest
  // out by `closure_runs_`, which is changed with the mutex held.
  Mutex step_mutex_;
  bool closure_runs_ = false;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace gradwire::autograd
