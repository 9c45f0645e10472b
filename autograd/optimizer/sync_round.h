#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/autograd/pass/engine.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent.h"

namespace gradwire::autograd {

// The gradients that the trainers of one optimizer leave for a step of all (Consistency::kSync): gathered
// until the last trainer has come, then averaged. Ends with an error for those who wait when a trainer is
// lost. Thread-safe; owned by the shard.
class SyncRound : public Engine::Watcher, public std::enable_shared_from_this<SyncRound> {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Rates = std::vector<double>;
  // The parameters that had no gradient in a step: how many; and of the first the number of its group and its
  // place among the group's parameters here.
  using Missing = std::tuple<int64_t, int64_t, int64_t>;
  // Steps with the averages and with the rates that came last.
  using Step = absl::FunctionRef<absl::StatusOr<Missing>(const Tensors& averages, const Rates& rates)>;
  // The gradients of one trainer.
  struct Deposit {
    rpc::Id context;
    rpc::Worker trainer;
    // One for each parameter, undefined where it has none.
    Tensors gradients;
    Rates rates;
    Promise<Missing> done;
    uint64_t timer = 0;
  };

  // `name`: of the optimizer, for messages.
  SyncRound(std::weak_ptr<rpc::Agent> agent, std::string name, int64_t trainers)
      : agent_(std::move(agent)), name_(std::move(name)), trainers_expected_(trainers) {}

  // A worker, by its incarnation, has made an optimizer of this name.
  void add_trainer(uint64_t trainer);
  // Calls `step` here if this is the last trainer of the round. Throws Error, FailedPrecondition, where the
  // context takes part already; and why there can be no round.
  void deposit(Deposit own, absl::Time deadline, Step step);

  void worker_lost(const rpc::Worker& worker, const absl::Status& reason) override;
  void context_released(const rpc::Id& context) override;
  void shutdown(const absl::Status& reason) override;

 private:
  using Deposits = std::vector<Deposit>;

  // The deposit fails when it still waits at `until`.
  void schedule(const rpc::Id& context, absl::Time until, TimerQueue& timers);
  Tensors average(Deposits& deposits) const;
  void fail(const std::function<bool(const Deposit&)>& which, const absl::Status& status);
  void expire(const rpc::Id& context);
  // Names the trainers that have come to the step that is gathered, and those that have not.
  std::string who_is_missing() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::weak_ptr<rpc::Agent> agent_;
  const std::string name_;
  const int64_t trainers_expected_;

  Mutex mutex_;
  Deposits deposits_ ABSL_GUARDED_BY(mutex_);
  // Incarnations of the workers whose optimizers share the shard.
  absl::flat_hash_set<uint64_t> trainers_ ABSL_GUARDED_BY(mutex_);
  // Why a round cannot come to an end: a trainer was lost and no other has taken its place.
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
