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
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/core/deadline.h"

namespace gradwire::autograd {

void SyncRound::add_trainer(uint64_t trainer) {
  MutexLock lock(mutex_);
  if (trainers_.insert(trainer).second) lost_ = absl::OkStatus();
}

// 1. With the lock: refuse the deposit if no round can complete, or if this context is in the round already:
//    it would count as two trainers. Otherwise add it. The thread that adds the last one takes all deposits,
//    so exactly one thread runs the step and the next round can begin at once.
// 2. A thread whose deposit is not the last one schedules its deadline and returns. The handler has returned
//    a future, so no thread waits.
// 3. The last thread averages and steps without the lock, because the step runs user code.
// 4. It completes all deposits with the same result, also with an error.
void SyncRound::deposit(Deposit own, absl::Time deadline, Step step) {
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  if (agent == nullptr) throw Error(absl::FailedPreconditionError("the agent has shut down"));
  const rpc::Id context = own.context;
  own.ready = device::DeviceFence::record_for(own.gradients);
  Deposits round;
  {
    MutexLock lock(mutex_);
    throw_if_error(stopped_);
    throw_if_error(lost_);
    for (const Deposit& other : deposits_) {
      if (other.context == context) {
        throw Error(absl::FailedPreconditionError(
            absl::StrCat("the autograd context ", rpc::to_string(context),
                         " has already sent its gradients for this step of \"", name_,
                         "\": each trainer must step once with its own context")));
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
    missing = caught("averaging gradients");
  }
  for (Deposit& each : round) {
    if (each.timer != 0) agent->services().timers().cancel(each.timer);
    each.done.set_result(missing);
  }
}

// The deposit may be completed by another thread before its timer is stored. That thread cannot cancel the
// timer, so it is cancelled here. The callback holds the round weakly, and finds no deposit if it runs
// nevertheless.
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
  // The gradients are added in the order of trainers, so that the sum does not depend on the order of
  // arrival.
  std::sort(deposits.begin(), deposits.end(), [](const Deposit& a, const Deposit& b) {
    return std::tie(a.trainer.id, a.context) < std::tie(b.trainer.id, b.context);
  });
  // The gradients of each trainer are ready on the streams of the thread that deposited them. This thread's
  // streams wait for them.
  for (const Deposit& each : deposits) {
    if (each.ready != nullptr) throw_if_error(each.ready->wait());
  }
  Tensors averages(deposits.front().gradients.size());
  for (std::size_t i = 0; i < averages.size(); ++i) {
    at::Tensor sum;
    for (const Deposit& each : deposits) {
      const at::Tensor& gradient = each.gradients[i];
      if (!gradient.defined()) continue;
      sum = !sum.defined() ? gradient : sum.is_sparse() ? gradient + sum : sum + gradient;
    }
    // A missing gradient of a trainer counts as zeros.
    if (sum.defined()) averages[i] = sum / static_cast<double>(trainers_expected_);
  }
  return averages;
}

// Takes the deposits out with the lock held and completes them without it: continuations may run inside
// set_error(), and the gradients are destroyed here.
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

std::string SyncRound::describe_deposits() {
  absl::btree_set<std::string> present, missing;
  std::vector<uint64_t> absent;
  int64_t deposits = 0;
  {
    MutexLock lock(mutex_);
    HashSet<uint64_t> present_incarnations;
    for (const Deposit& deposit : deposits_) {
      present.insert(absl::StrCat("\"", deposit.trainer.name, "\""));
      present_incarnations.insert(deposit.trainer.incarnation);
    }
    deposits = static_cast<int64_t>(deposits_.size());
    for (const uint64_t trainer : trainers_) {
      if (!present_incarnations.contains(trainer)) absent.push_back(trainer);
    }
  }
  const std::shared_ptr<rpc::Agent> agent = agent_.lock();
  for (const uint64_t trainer : absent) {
    const auto worker = agent == nullptr ? absl::StatusOr<rpc::Worker>(absl::NotFoundError(""))
                                         : agent->services().find_worker_by_incarnation(trainer);
    if (worker.ok()) missing.insert(absl::StrCat("\"", worker->name, "\""));
  }
  std::string text = absl::StrCat("got gradients from ", absl::StrJoin(present, ", "));
  if (!missing.empty()) absl::StrAppend(&text, ", not from ", absl::StrJoin(missing, ", "));
  const int64_t unknown = trainers_expected_ - deposits - static_cast<int64_t>(missing.size());
  if (unknown > 0) {
    absl::StrAppend(&text, ", and ", unknown, " of the trainers ", unknown == 1 ? "has" : "have",
                    " made no optimizer of this name for these parameters");
  }
  return text;
}

void SyncRound::expire(const rpc::Id& context) {
  const std::string deposits = describe_deposits();
  fail([&](const Deposit& d) { return d.context == context; },
       absl::DeadlineExceededError(absl::StrCat("a step of \"", name_, "\" timed out while it waited for ",
                                                trainers_expected_, " trainers: ", deposits)));
}

void SyncRound::worker_lost(const rpc::Worker& worker, const absl::Status& reason) {
  const absl::Status status(reason.code(), absl::StrCat("the trainer \"", worker.name, "\" of \"", name_,
                                                        "\" was lost: ", reason.message()));
  // `lost_` is set before the deposits fail. A deposit that arrives in between is refused with it, so none
  // waits for a trainer that cannot come. A new trainer of the same name makes rounds possible again.
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
