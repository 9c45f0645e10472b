#include "gradwire/autograd/optimizer/sync_round.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/agent/agent_services.h"
#include "gradwire/rpc/caller/answer_by.h"

namespace gradwire::autograd {

void SyncRound::add_trainer(uint64_t trainer) {
  MutexLock lock(mutex_);
  if (trainers_.insert(trainer).second) lost_ = absl::OkStatus();
}

void SyncRound::deposit(Deposit own, absl::Time deadline, Step step) {
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent has shut down"));
  const rpc::Id context = own.context;
  Deposits round;
  {
    MutexLock lock(mutex_);
    throw_if_error(stopped_);
    throw_if_error(lost_);
    for (const Deposit& other : deposits_) {
      if (other.context == context) {
        throw Error(absl::FailedPreconditionError(
            absl::StrCat("the autograd context ", rpc::to_string(context), " takes part in this step of \"",
                         name_, "\" already")));
      }
    }
    trainers_.insert(own.trainer.incarnation);
    deposits_.push_back(std::move(own));
    if (static_cast<int64_t>(deposits_.size()) >= trainers_expected_) round.swap(deposits_);
  }
  if (round.empty()) {
    return schedule(context, rpc::answer_by(agent->services().timers().clock().now(), deadline),
                    agent->services().timers());
  }
  absl::StatusOr<Missing> missing;
  try {
    const Tensors averages = average(round);
    Rates latest;
    for (const Deposit& each : round) {
      if (!each.rates.empty()) latest = each.rates;
    }
    missing = step(averages, latest);
  } catch (...) {
    missing = with_context(status_from_exception(std::current_exception()), "averaging gradients");
  }
  for (Deposit& each : round) {
    if (each.timer != 0) agent->services().timers().cancel(each.timer);
    each.done.set_result(missing);
  }
}

void SyncRound::schedule(const rpc::Id& context, absl::Time until, TimerQueue& timers) {
  const uint64_t timer = timers.schedule(until, [weak = weak_from_this(), context] {
    if (auto self = weak.lock()) self->expire(context);
  });
  MutexLock lock(mutex_);
  auto found = std::find_if(deposits_.begin(), deposits_.end(),
                            [&](const Deposit& each) { return each.context == context; });
  if (found != deposits_.end()) {
    found->timer = timer;
  } else {
    timers.cancel(timer);
  }
}

SyncRound::Tensors SyncRound::average(Deposits& deposits) const {
  at::NoGradGuard no_graph;
  // By trainer and not by arrival, so that the sum is the same every time.
  std::sort(deposits.begin(), deposits.end(), [](const Deposit& a, const Deposit& b) {
    return std::tie(a.trainer.id, a.context) < std::tie(b.trainer.id, b.context);
  });
  Tensors averages(deposits.front().gradients.size());
  for (std::size_t i = 0; i < averages.size(); ++i) {
    at::Tensor sum;
    for (const Deposit& each : deposits) {
      const at::Tensor& gradient = each.gradients[i];
      if (!gradient.defined()) continue;
      sum = !sum.defined() ? gradient : sum.is_sparse() ? gradient + sum : sum + gradient;
    }
    // A trainer without a gradient counts as one of zeros.
    if (sum.defined()) averages[i] = sum / static_cast<double>(trainers_expected_);
  }
  return averages;
}

void SyncRound::fail(const std::function<bool(const Deposit&)>& which, const absl::Status& status) {
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
    if (each.timer != 0 && agent != nullptr) agent->services().timers().cancel(each.timer);
    each.done.set_error(status);
  }
}

std::string SyncRound::who_is_missing() {
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
                                         : agent->services().find_worker_by_incarnation(trainer);
    if (worker.ok()) missing.insert(absl::StrCat("\"", worker->name, "\""));
  }
  std::string text = absl::StrCat("only ", absl::StrJoin(came, ", "), " came");
  if (!missing.empty()) absl::StrAppend(&text, ", ", absl::StrJoin(missing, ", "), " did not");
  const int64_t unknown = trainers_expected_ - deposits - static_cast<int64_t>(missing.size());
  if (unknown > 0) {
    absl::StrAppend(&text, ", and ", unknown, " of the trainers ", unknown == 1 ? "has" : "have",
                    " made no optimizer of this name for these parameters");
  }
  return text;
}

void SyncRound::expire(const rpc::Id& context) {
  const std::string who = who_is_missing();
  fail([&](const Deposit& d) { return d.context == context; },
       absl::DeadlineExceededError(absl::StrCat("a step of \"", name_, "\" waited in vain for ",
                                                trainers_expected_, " trainers: ", who)));
}

void SyncRound::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  const absl::Status status(reason.code(), absl::StrCat("the trainer \"", worker.name, "\" of \"", name_,
                                                        "\" was lost: ", reason.message()));
  {
    MutexLock lock(mutex_);
    if (trainers_.erase(worker.incarnation) == 0) return;
    lost_ = status;
  }
  fail([](const Deposit&) { return true; }, status);
}

void SyncRound::context_released(const rpc::Id& context) {
  fail([&](const Deposit& d) { return d.context == context; },
       absl::NotFoundError(
           absl::StrCat("the autograd context ", rpc::to_string(context), " was released before its step")));
}

void SyncRound::shutdown(const absl::Status& reason) {
  {
    MutexLock lock(mutex_);
    stopped_ = reason;
  }
  fail([](const Deposit&) { return true; }, reason);
}

}  // namespace gradwire::autograd
