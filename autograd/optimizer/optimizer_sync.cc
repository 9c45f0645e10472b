// Consistency::kSync: the gradients of all trainers, gathered and averaged.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/autograd/optimizer/optimizer_shard.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/call_context.h"
#include "gradwire/rpc/caller/answer_by.h"

namespace gradwire::autograd {

void OptimizerShard::deposit(const std::shared_ptr<ContextState>& context, const Rates& rates,
                             absl::Time deadline, Promise<Missing> done) {
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
    const absl::Time until = rpc::answer_by(agent->timers().clock().now(), deadline);
    const uint64_t timer = agent->timers().schedule(until, [weak = weak_from_this(), id = context->id] {
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
  Missing missing;
  try {
    const Tensors averages = average(round);
    missing = missing_of(averages);
    Rates latest;
    for (const Deposit& each : round) {
      if (!each.rates.empty()) latest = each.rates;
    }
    if (!refuses(missing)) status = apply(averages, latest);
  } catch (...) {
    status = with_context(status_from_exception(std::current_exception()), "averaging gradients");
  }
  for (Deposit& each : round) {
    if (each.timer != 0) agent->timers().cancel(each.timer);
    if (status.ok()) {
      each.done.set_value(missing);
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

std::string OptimizerShard::who_is_missing() {
  absl::btree_set<std::string> came, missing;
  std::vector<uint64_t> absent;
  int64_t deposits = 0;
  {
    MutexLock lock(mutex_);
    absl::flat_hash_set<uint64_t> there;
    for (const Deposit& deposit : deposits_) {
      came.insert(absl::StrCat("\"", deposit.trainer.name, "\""));
      there.insert(deposit.trainer.incarnation);
    }
    deposits = static_cast<int64_t>(deposits_.size());
    for (const uint64_t trainer : trainers_) {
      if (!there.contains(trainer)) absent.push_back(trainer);
    }
  }
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  for (const uint64_t trainer : absent) {
    const auto worker = agent == nullptr ? absl::StatusOr<rpc::Worker>(absl::NotFoundError(""))
                                         : agent->find_worker_by_incarnation(trainer);
    if (worker.ok()) missing.insert(absl::StrCat("\"", worker->name, "\""));
  }
  std::string text = absl::StrCat("only ", absl::StrJoin(came, ", "), " came");
  if (!missing.empty()) absl::StrAppend(&text, ", ", absl::StrJoin(missing, ", "), " did not");
  const int64_t unknown = settings_.trainers - deposits - static_cast<int64_t>(missing.size());
  if (unknown > 0) {
    absl::StrAppend(&text, ", and ", unknown, " of the trainers ", unknown == 1 ? "has" : "have",
                    " made no optimizer of this name for these parameters");
  }
  return text;
}

void OptimizerShard::expire(const rpc::Id& context) {
  const std::string who = who_is_missing();
  fail_deposits(
      [&](const Deposit& d) { return d.context == context; },
      absl::DeadlineExceededError(absl::StrCat("a step of \"", settings_.name, "\" waited in vain for ",
                                               settings_.trainers, " trainers: ", who)));
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
