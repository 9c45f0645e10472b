// Consistency::kSync: the gradients of all trainers, gathered and averaged.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "autograd/optimizer_shard.h"
#include "base/error.h"
#include "rpc/call_context.h"

namespace gradwire::autograd {

void OptimizerShard::deposit(const std::shared_ptr<ContextState>& context, const Rates& rates,
                             absl::Time deadline, Promise<void> done) {
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent has shut down"));
  auto call = rpc::CallContext::current();
  rpc::Worker trainer = agent->self();
  if (call != nullptr) trainer = value_or_throw(agent->find_worker(call->caller()));
  Deposit own{context->id, trainer, gradients_of(*context), rates, std::move(done)};
  Deposits round;
  {
    MutexLock lock(mutex_);
    throw_if_error(stopped_);
    throw_if_error(lost_);
    for (const Deposit& other : deposits_) {
      if (other.context == context->id) {
        throw Error(absl::FailedPreconditionError(
            absl::StrCat("the autograd context ", rpc::to_string(context->id),
                         " takes part in this step of \"", settings_.name, "\" already")));
      }
    }
    trainers_.insert(trainer.incarnation);
    deposits_.push_back(std::move(own));
    if (static_cast<int64_t>(deposits_.size()) >= settings_.trainers) round.swap(deposits_);
  }
  if (round.empty()) {
    const uint64_t timer = agent->timers().schedule(deadline, [weak = weak_from_this(), id = context->id] {
      if (auto self = weak.lock()) self->expire(id);
    });
    MutexLock lock(mutex_);
    auto found = std::find_if(deposits_.begin(), deposits_.end(),
                              [&](const Deposit& d) { return d.context == context->id; });
    if (found != deposits_.end()) {
      found->timer = timer;
    } else {
      agent->timers().cancel(timer);
    }
    return;
  }
  absl::Status status;
  try {
    const Tensors averages = average(round);
    Rates latest;
    for (const Deposit& each : round) {
      if (!each.rates.empty()) latest = each.rates;
    }
    status = apply(averages, latest);
  } catch (...) {
    status = with_context(status_from_exception(std::current_exception()), "averaging gradients");
  }
  for (Deposit& each : round) {
    if (each.timer != 0) agent->timers().cancel(each.timer);
    if (status.ok()) {
      each.done.set_value();
    } else {
      each.done.set_error(status);
    }
  }
}

OptimizerShard::Tensors OptimizerShard::average(Deposits& deposits) const {
  at::NoGradGuard no_graph;
  // By trainer and not by arrival, so that the sum is the same every time.
  std::sort(deposits.begin(), deposits.end(), [](const Deposit& a, const Deposit& b) {
    return std::tie(a.trainer.id, a.context) < std::tie(b.trainer.id, b.context);
  });
  Tensors averages(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor sum;
    for (const Deposit& each : deposits) {
      const at::Tensor& gradient = each.gradients[i];
      if (!gradient.defined()) continue;
      sum = !sum.defined() ? gradient : sum.is_sparse() ? gradient + sum : sum + gradient;
    }
    // A trainer without a gradient counts as one of zeros.
    if (sum.defined()) averages[i] = sum / static_cast<double>(settings_.trainers);
  }
  return averages;
}

void OptimizerShard::fail_deposits(const std::function<bool(const Deposit&)>& which,
                                   const absl::Status& status) {
  Deposits failed;
  {
    MutexLock lock(mutex_);
    auto first = std::stable_partition(deposits_.begin(), deposits_.end(),
                                       [&](const Deposit& d) { return !which(d); });
    std::move(first, deposits_.end(), std::back_inserter(failed));
    deposits_.erase(first, deposits_.end());
  }
  std::shared_ptr<rpc::Agent> agent = agent_.lock();
  for (Deposit& each : failed) {
    if (each.timer != 0 && agent != nullptr) agent->timers().cancel(each.timer);
    each.done.set_error(status);
  }
}

std::string OptimizerShard::who_is_there_locked() const {
  return absl::StrJoin(deposits_, ", ", [](std::string* out, const Deposit& d) {
    absl::StrAppend(out, "\"", d.trainer.name, "\"");
  });
}

void OptimizerShard::expire(const rpc::Id& context) {
  std::string who;
  {
    MutexLock lock(mutex_);
    who = who_is_there_locked();
  }
  fail_deposits(
      [&](const Deposit& d) { return d.context == context; },
      absl::DeadlineExceededError(absl::StrCat("a step of \"", settings_.name, "\" waited in vain for ",
                                               settings_.trainers, " trainers; only ", who, " came")));
}

void OptimizerShard::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  const absl::Status status(reason.code(), absl::StrCat("the trainer \"", worker.name, "\" of \"",
                                                        settings_.name, "\" was lost: ", reason.message()));
  {
    MutexLock lock(mutex_);
    if (trainers_.erase(worker.incarnation) == 0) return;
    lost_ = status;
  }
  fail_deposits([](const Deposit&) { return true; }, status);
}

void OptimizerShard::context_released(const rpc::Id& context) {
  fail_deposits([&](const Deposit& d) { return d.context == context; },
                absl::NotFoundError(absl::StrCat("the autograd context ", rpc::to_string(context),
                                                 " was released before its step")));
}

void OptimizerShard::shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    stopped_ = reason;
  }
  fail_deposits([](const Deposit&) { return true; }, reason);
}

}  // namespace gradwire::autograd
