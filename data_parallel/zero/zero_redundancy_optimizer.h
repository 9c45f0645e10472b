#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/buckets/coalesced_broadcast.h"
#include "gradwire/data_parallel/join/join.h"

namespace gradwire::data_parallel {

// The implementation of ZeroRedundancyOptimizer without its template: an optimizer whose state is divided
// over the ranks of a group. Each rank has an optimizer for its share of the parameters.
class ShardedOptimizer : public torch::optim::Optimizer, public Joinable {
 public:
  // Makes an optimizer for some parameters.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(
      std::vector<torch::optim::OptimizerParamGroup> groups)>;

  // All ranks of the group (nullptr: the world) must call it with the same parameters in the same order.
  // Throws Error: InvalidArgument if there are no parameters, or this rank is not in the group;
  // FailedPrecondition if there is no world.
  ShardedOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                   std::unique_ptr<torch::optim::OptimizerOptions> defaults, Factory factory,
                   std::shared_ptr<collectives::ProcessGroup> group);

  // Steps this rank's parameters with the gradients that all ranks have, and broadcasts the new values. All
  // ranks must call it. `closure` runs on each rank. Throws the group's errors; after one, the parameters of
  // the ranks may differ.
  //
  // Between two steps add_param_group() may add a group of parameters, the same one on all ranks. step() and
  // the methods below throw Error with FailedPrecondition if the parameters of a group have changed
  // otherwise.
  at::Tensor step(LossClosure closure = nullptr) override;

  // The two halves of step() for some of the parameters, for hooks that step in the backward pass. The first
  // one steps those parameters that this rank steps. All ranks must call the second one with the same
  // parameters in the same order: it starts the broadcasts of the new values. Throws the group's errors.
  void step_some(const std::vector<at::Tensor>& parameters);
  // As above.
  std::vector<CoalescedBroadcast> broadcast_some(const std::vector<at::Tensor>& parameters);
  // The rank of the group that steps the parameter; nullopt for a parameter of another module.
  std::optional<int> owner_of(const at::Tensor& parameter) const;

  // Sends the state of all ranks to rank `to` of the group, which can then save it. All ranks must call it.
  // Throws the group's errors.
  void consolidate_state(int to = 0);
  // Writes the state of all parameters, in the format of the unsharded optimizer: one program may save it
  // here, and another one may load it without this class or with another number of ranks. Throws Error with
  // FailedPrecondition unless consolidate_state() has sent the states of the current step to this rank.
  void save(torch::serialize::OutputArchive& archive) const override;
  // Reads what save(), or an unsharded optimizer, has written. Every rank reads the whole archive and keeps
  // its share.
  void load(torch::serialize::InputArchive& archive) override;

  // The rank of the group that has the state of each parameter; by group of parameters. A group of
  // add_param_group() is there after the next step.
  const std::vector<std::vector<int>>& owners() const { return owners_; }
  // This rank's optimizer. Its groups have the same indices as the groups of all parameters. Options are
  // copied to it from param_groups() in each step.
  torch::optim::Optimizer& local() { return *local_; }
  // As above.
  const torch::optim::Optimizer& local() const { return *local_; }

  // Called by Join. A rank without data steps with the others: its gradients are those of the replica's join.
  const std::shared_ptr<collectives::ProcessGroup>& join_group() const override { return group_; }
  // Called by Join.
  at::Device join_device() const override;
  // Called by Join.
  std::unique_ptr<JoinHook> join_hook() override;
  // Called by Join.
  void set_join_notifier(JoinNotifier* notifier) override { join_ = notifier; }

 private:
  // Assigns the parameters of new groups to ranks. The base class's add_param_group() is not virtual, so each
  // operation calls this first.
  void divide_groups();
  // The groups with only the parameters of this rank of the group.
  std::vector<torch::optim::OptimizerParamGroup> share_of(int rank) const;
  void copy_options(torch::optim::Optimizer& to) const;
  // An optimizer of all parameters without a state.
  std::unique_ptr<torch::optim::Optimizer> make_whole() const;
  void step_and_broadcast();

  const std::shared_ptr<collectives::ProcessGroup> group_;
  const Factory factory_;
  std::vector<std::vector<int>> owners_;
  HashMap<const c10::TensorImpl*, int> owner_of_;
  // Number of elements that each rank steps.
  std::vector<int64_t> load_;
  std::unique_ptr<torch::optim::Optimizer> local_;
  JoinNotifier* join_ = nullptr;
  // The states of all ranks, each as its archive; empty unless they were sent here since the last step.
  std::vector<std::string> consolidated_;
};

// An optimizer of torch::optim whose state is divided over the ranks: each rank keeps the state of its share
// of the parameters and steps them, and then broadcasts the new values. So the memory of the state is divided
// by the number of ranks. Every rank needs the same gradients, for example those of DistributedDataParallel.
// It follows ZeroRedundancyOptimizer of torch.distributed.optim. It is a torch::optim::Optimizer itself, so
// learning rate schedulers work with it. O must be an optimizer whose step() needs no closure: LBFGS cannot
// be divided. Used by one thread.
//
//   ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(net->parameters(),
//                                                         torch::optim::AdamOptions(1e-3));
template <class O>
class ZeroRedundancyOptimizer : public ShardedOptimizer {
 public:
  // O's constructor arguments; the last one is the group, nullptr for the world. For the errors see
  // ShardedOptimizer.
  template <class Options>
  ZeroRedundancyOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, const Options& defaults,
                          std::shared_ptr<collectives::ProcessGroup> group = nullptr)
      : ShardedOptimizer(
            std::move(groups), std::make_unique<Options>(defaults),
            [defaults](std::vector<torch::optim::OptimizerParamGroup> own) {
              return std::make_unique<O>(std::move(own), defaults);
            },
            std::move(group)) {}
  // As above, with one group of parameters.
  template <class Options>
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const Options& defaults,
                          std::shared_ptr<collectives::ProcessGroup> group = nullptr)
      : ZeroRedundancyOptimizer(
            std::vector<torch::optim::OptimizerParamGroup>{
                torch::optim::OptimizerParamGroup(std::move(parameters))},
            defaults, std::move(group)) {}
};

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::ShardedOptimizer;
using data_parallel::ZeroRedundancyOptimizer;
}  // namespace gradwire::collectives
