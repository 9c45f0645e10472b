#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "autograd/engine.h"
#include "base/future.h"
#include "base/mutex.h"
#include "rpc/agent.h"
#include "rpc/rref.h"

namespace gradwire::autograd {

// How steps of several trainers on the same parameters go together.
enum class Consistency {
  // A step waits, within its deadline, while another live context has a forward without its backward on the
  // owner, and
  // contexts that come later wait for the step: every gradient is that of the parameters its forward saw.
  kWait,
  // The owner gathers the gradients of all trainers, averages them and steps once.
  kSync,
  // Steps come as they come.
  kHogwild,
};

// The part of a distributed optimizer that lives beside the parameters of one owner: the optimizer proper,
// its state, and whoever waits for a step. Shared by the optimizers of several trainers that have one name.
// Thread-safe; owned by the RRefs to it.
class OptimizerShard : public Engine::Watcher, public std::enable_shared_from_this<OptimizerShard> {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  struct Settings {
    std::string name;
    // The optimizer's name on the wire.
    std::string kind;
    Consistency consistency = Consistency::kWait;
    int64_t trainers = 1;
  };

  // The shard of this name on the calling handler's agent, made if there is none; a fresh one where the name
  // is empty. Throws Error, InvalidArgument, where the one there is has another optimizer, parameters or
  // settings.
  static rpc::RRef<OptimizerShard> make(const std::vector<rpc::RRef<at::Tensor>>& parameters,
                                        const Settings& settings, const MakeOptimizer& make_optimizer);

  OptimizerShard(const std::shared_ptr<rpc::Agent>& agent, Settings settings,
                 std::vector<at::Tensor> parameters, std::unique_ptr<torch::optim::Optimizer> optimizer);
  ~OptimizerShard() override;

  // Called by trainers. The context is {origin, counter}: it may be one that has not been here.
  Future<void> step(uint64_t origin, uint64_t counter);
  void set_learning_rate(double rate);
  double learning_rate();

  void worker_lost(const rpc::Worker& worker, const absl::Status& reason) override;
  void context_released(const rpc::Id& context) override;
  void shutdown(const absl::Status& reason) override;

 private:
  using Tensors = std::vector<at::Tensor>;

  // A trainer's gradients that wait for those of the others (kSync).
  struct Deposit {
    rpc::Id context;
    rpc::Worker trainer;
    Tensors gradients;
    Promise<void> done;
    uint64_t timer = 0;
  };
  using Deposits = std::vector<Deposit>;

  Tensors gradients_of(ContextState& context) const;
  // Sets the gradients, steps, and sets back what was there.
  absl::Status apply(const Tensors& gradients);
  void step_when_admitted(const std::shared_ptr<ContextState>& context, absl::Time deadline,
                          Promise<void> done);
  void deposit(const std::shared_ptr<ContextState>& context, absl::Time deadline, Promise<void> done);
  Tensors average(Deposits& deposits) const;
  void fail_deposits(const std::function<bool(const Deposit&)>& which, const absl::Status& status);
  void expire(const rpc::Id& context);
  std::string who_is_there_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::weak_ptr<rpc::Agent> agent_;
  const Settings settings_;
  const Tensors parameters_;

  // Held while the optimizer steps.
  Mutex step_mutex_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;

  Mutex mutex_;
  Deposits deposits_ ABSL_GUARDED_BY(mutex_);
  // Incarnations of the workers whose optimizers share this shard.
  absl::flat_hash_set<uint64_t> trainers_ ABSL_GUARDED_BY(mutex_);
  // Why a round cannot come to an end: a trainer was lost and no other has taken its place.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

// For clipping: the sum of the gradients' norms to the power `p` (their maximum where p is infinite), and
// their scaling.
double gradient_norm(uint64_t origin, uint64_t counter, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                     double p);
void scale_gradients(uint64_t origin, uint64_t counter, const std::vector<rpc::RRef<at::Tensor>>& parameters,
                     double factor);

}  // namespace gradwire::autograd
