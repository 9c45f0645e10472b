#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/device/device_fence.h"
#include "gradwire/rpc/calls/agent.h"

namespace gradwire::autograd {

// Gathers the gradients of all trainers of one optimizer for a common step (Consistency::kSync). When the
// last trainer has deposited its gradients, they are averaged and the step runs. If a trainer is lost, the
// deposits that wait fail. Thread-safe. Owned by the shard.
class SyncRound : public Engine::Watcher, public std::enable_shared_from_this<SyncRound> {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Rates = std::vector<double>;
  // The parameters that had no gradient in a step: their number; then, for the first one, the number of its
  // group and its position among the group's parameters on this worker.
  using Missing = std::tuple<int64_t, int64_t, int64_t>;
  // A function that steps with the averages and with the rates of the last deposit that has rates.
  using Step = absl::FunctionRef<absl::StatusOr<Missing>(const Tensors& averages, const Rates& rates)>;
  // The gradients of one trainer.
  struct Deposit {
    rpc::Id context;
    rpc::Worker trainer;
    // One gradient for each parameter; undefined if the parameter has none. They are ready on the current
    // streams of the thread that deposits them.
    Tensors gradients;
    Rates rates;
    Promise<Missing> done;
    // Set by deposit(): the point in the depositing thread's streams at which the gradients are ready.
    StreamFencePtr ready = nullptr;
    uint64_t timer = 0;
  };

  // `name`: the name of the optimizer, for error messages.
  SyncRound(std::weak_ptr<rpc::Agent> agent, std::string name, int64_t trainers)
      : agent_(std::move(agent)), name_(std::move(name)), trainers_expected_(trainers) {}

  // Records that a worker, given by its incarnation, has made an optimizer of this name.
  void add_trainer(uint64_t trainer);
  // Adds a deposit, and calls `step` if it is the last one of the round. Throws Error, FailedPrecondition, if
  // the context has a deposit in this round already. Throws the reason if no round is possible, because a
  // trainer was lost or the agent has shut down.
  void deposit(Deposit own, absl::Time deadline, Step step);

  void worker_lost(const rpc::Worker& worker, const absl::Status& reason) override;
  void context_released(const rpc::Id& context) override;
  void shutdown(const absl::Status& reason) override;

 private:
  using Deposits = std::vector<Deposit>;

  // Makes the deposit fail if it still waits at `until`.
  void schedule(const rpc::Id& context, absl::Time until, TimerQueue& timers);
  Tensors average(Deposits& deposits) const;
  void fail(const std::function<bool(const Deposit&)>& which, const absl::Status& status);
  void expire(const rpc::Id& context);
  // Returns a text that names the trainers that have made a deposit in this round, and those that have not.
  std::string describe_deposits() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::weak_ptr<rpc::Agent> agent_;
  const std::string name_;
  const int64_t trainers_expected_;

  Mutex mutex_;
  Deposits deposits_ ABSL_GUARDED_BY(mutex_);
  // Incarnations of the workers whose optimizers share the shard.
  HashSet<uint64_t> trainers_ ABSL_GUARDED_BY(mutex_);
  // The error while no round can complete, because a trainer was lost and no new trainer was added since.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
