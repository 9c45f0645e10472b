#include "gradwire/rpc/rref/service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/nested_callbacks.h"
#include "gradwire/rpc/limits/limit_refusals.h"
#include "gradwire/rpc/registry/server_call.h"

namespace gradwire::rpc {
namespace {

using Actions = References::Actions;
using Tables = ReferenceDriver::Tables;

Future<void> ready() { return Future<void>(absl::OkStatus()); }

ReferenceBounds bounds(const HoldLimit& limit) {
  if (limit.refusals == nullptr) return {};
  return {.forks = limit.references, .messages = limit.references};
}

}  // namespace

uint64_t CallsBeforeCreation::add() {
  MutexLock lock(mutex_);
  if (created_) return 0;
  calls_.emplace(next_, End());
  return next_++;
}

void CallsBeforeCreation::sent(uint64_t call, End end) {
  absl::Status failed;
  {
    MutexLock lock(mutex_);
    auto found = calls_.find(call);
    if (found == calls_.end()) return;
    if (!created_) {
      found->second = std::move(end);
      return;
    }
    failed = *created_;
    calls_.erase(found);
  }
  if (!failed.ok()) end(failed);
}

void CallsBeforeCreation::remove(uint64_t call) {
  End removed;  // Destroyed outside the lock.
  MutexLock lock(mutex_);
  auto found = calls_.find(call);
  if (found == calls_.end()) return;
  removed = std::move(found->second);
  calls_.erase(found);
}

// Calls that are being sent stay in the table: sent() ends them.
void CallsBeforeCreation::created(const absl::Status& status) {
  std::vector<End> ends;
  {
    MutexLock lock(mutex_);
    created_ = status;
    for (auto call = calls_.begin(); call != calls_.end();) {
      if (call->second == nullptr) {
        ++call;
      } else {
        ends.push_back(std::move(call->second));
        call = calls_.erase(call);
      }
    }
  }
  if (status.ok()) return;
  // The result of such a call may be the object of further calls.
  run_nested(
      [ends = std::move(ends), status]() mutable {
        for (End& end : ends) end(status);
      },
      "the end of calls on a failed creation");
}

std::size_t CallsBeforeCreation::size() const {
  MutexLock lock(mutex_);
  return calls_.size();
}

// The service is held weakly, because handles are objects of the user and may outlive the agent. Its tables
// are gone then, and nothing needs to be released.
RRefHandle::~RRefHandle() {
  const std::shared_ptr<RRefService> service = state_.service.lock();
  if (service == nullptr) return;
  run_contained("releasing a reference", [&] { service->driver().release(state_.rref, state_.fork); });
}

std::shared_ptr<Agent> RRefHandle::agent() const {
  const std::shared_ptr<RRefService> service = state_.service.lock();
  return service == nullptr ? nullptr : service->agent();
}

RRefService::RRefService(ReferenceHost& agent, ArrivalOrder& arrival_order, const HoldLimit& limit)
    : agent_(agent),
      limit_(limit),
      driver_(std::make_shared<ReferenceDriver>(agent, arrival_order, bounds(limit))),
      values_(agent, *driver_) {}

bool RRefService::limits(const Worker& worker) const {
  return limit_.refusals != nullptr && worker.incarnation != agent_.self().incarnation;
}

absl::Status RRefService::refuse(const Worker& worker, absl::string_view what) const {
  return limit_.refusals->refuse(worker, agent_.self(), {what, "max_references", limit_.references},
                                 Clock::system().now());
}

absl::Status RRefService::check_hold(const Worker& holder) const {
  if (!limits(holder) || driver_->forks_of(holder.incarnation) < limit_.references) return absl::OkStatus();
  return refuse(holder, kHeld);
}

std::shared_ptr<RRefHandle> RRefService::own(std::shared_ptr<void> value, const TypeOps* type) {
  const Id rref = agent_.next_id();
  driver_->apply([&](Tables& tables, Actions&) { tables.references.own(rref); });
  values_.set(rref, OwnedValue{std::move(value), type, nullptr, nullptr});
  return std::make_shared<RRefHandle>(
      RRefHandle::State{weak_from_this(), rref, Id(), agent_.self(), type->name(), ready(), ready()});
}

absl::StatusOr<RRefService::Remote> RRefService::begin_remote(const Worker& owner, const std::string& type,
                                                              Promise<void> created) {
  const Id rref = agent_.next_id();
  const Id fork = agent_.next_id();
  const bool here = owner == agent_.self();
  Promise<void> confirmed(agent_.executor());
  auto early_calls = std::make_shared<CallsBeforeCreation>();
  created.future().on_ready_inline(
      [early_calls](const absl::Status& status) { early_calls->created(status); });
  // Made before the entry in the table, which nobody would release without it.
  auto handle = std::make_shared<RRefHandle>(
      RRefHandle::State{weak_from_this(), rref, here ? Id() : fork, owner, type, created.future(),
                        here ? ready() : confirmed.future(), std::move(early_calls)});
  bool lost = false;
  const bool open = driver_->apply([&](Tables& tables, Actions&) {
    if (here) {
      tables.references.own(rref);
      tables.values.try_emplace(rref);
      return;
    }
    // begin_creation() adds no fork if the owner is lost.
    tables.references.begin_creation(rref, fork, owner.incarnation);
    lost = !tables.references.holder().contains(fork);
    if (!lost) tables.unconfirmed.emplace(fork, confirmed);
  });
  if (!open) return absl::FailedPreconditionError("the agent has been shut down");
  if (lost)
    confirmed.set_error(absl::UnavailableError(absl::StrCat(
        "cannot create an RRef: its owner, worker \"", owner.name, "\", has left or was declared dead")));
  return Remote{std::move(handle), fork};
}

// The order matters on a worker that is not the owner:
//   1. Complete the future of the fork with the result of the call, while the promise is still in the table.
//      Otherwise step 3 would complete it as confirmed, also after an error.
//   2. After an error, let the owner know, so that calls there do not wait for the value.
//   3. Confirm the fork. Its delete may follow from here on.
void RRefService::end_remote(const Remote& remote, const absl::Status& created) {
  const RRefHandle& handle = *remote.handle;
  if (handle.is_owner()) {
    // Wakes the calls that wait for the value, if the request could not do so.
    if (!created.ok()) values_.set(handle.rref(), created);
    driver_->apply([&](Tables& tables, Actions& actions) {
      tables.references.end_own_creation(handle.rref(), remote.fork, created.ok(), actions);
    });
    return;
  }
  std::optional<Promise<void>> confirmed;
  driver_->apply([&](Tables& tables, Actions&) {
    if (auto found = tables.unconfirmed.find(remote.fork); found != tables.unconfirmed.end()) {
      confirmed = found->second;
      tables.unconfirmed.erase(found);
    }
  });
  if (confirmed) confirmed->set_result(created);
  if (!created.ok()) driver_->creation_failed(handle.owner(), handle.rref(), remote.fork);
  driver_->apply(
      [&](Tables& tables, Actions& actions) { tables.references.end_creation(remote.fork, actions); });
}

void RRefService::serve(const ServiceCall& call) {
  if (call.service == kCreationFailed) {
    values_.serve_creation_failed(call);
  } else {
    driver_->serve(call);
  }
}

}  // namespace gradwire::rpc
