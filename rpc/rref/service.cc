#include "rpc/rref/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "proto/rpc.pb.h"
#include "rpc/agent.h"

namespace gradwire::rpc {
namespace {

// How long an RRef that is unknown here is waited for.
constexpr absl::Duration kGrace = absl::Seconds(10);

Future<void> ready() { return Future<void>(absl::OkStatus()); }

}  // namespace

RRefHandle::~RRefHandle() {
  if (std::shared_ptr<RRefService> service = parts_.service.lock()) service->release(*this);
}

RRefService::RRefService(Agent& agent) : agent_(agent) {}

std::shared_ptr<Agent> RRefService::agent() const { return agent_.weak_from_this().lock(); }

std::shared_ptr<RRefHandle> RRefService::own(std::shared_ptr<void> value, const TypeOps* type) {
  const Id rref = agent_.next_id();
  {
    MutexLock lock(mutex_);
    owner_table_.add_local(rref);
  }
  set_value(rref, Owned{std::move(value), type, nullptr});
  return std::make_shared<RRefHandle>(
      RRefHandle::Parts{weak_from_this(), rref, Id(), agent_.self(), type->name(), ready(), ready()});
}

void RRefService::begin_value(const Id& rref, const Id& fork, const Worker& holder) {
  OwnerTable::Freed freed;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    slots_.try_emplace(rref);
    freed = owner_table_.add_fork(rref, fork, holder.incarnation);
  }
  free_values(freed);
}

void RRefService::set_value(const Id& rref, absl::StatusOr<Owned> value) {
  if (value.ok() && value->type->serial()) value->strand = std::make_shared<Strand>(agent_.executor());
  std::list<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    // Nobody refers to it any more: `value` goes when this returns.
    if (closed_ || !owner_table_.contains(rref)) return;
    Slot& slot = slots_[rref];
    if (slot.value.has_value()) return;
    slot.value = value;
    waiters.swap(slot.waiters);
  }
  for (Waiter& waiter : waiters) {
    agent_.timers().cancel(waiter.timer);
    waiter.found(value);
  }
}

void RRefService::find(const Id& rref, absl::Time deadline, Found found) {
  std::optional<absl::StatusOr<Owned>> value;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      value = absl::FailedPreconditionError("the agent has been shut down");
    } else {
      Slot& slot = slots_[rref];
      if (slot.value.has_value()) {
        value = slot.value;
      } else {
        const absl::Time grace_end = agent_.timers().clock().now() + kGrace;
        const bool grace = !owner_table_.contains(rref) && grace_end < deadline;
        const uint64_t number = next_waiter_++;
        const uint64_t timer = agent_.timers().schedule(
            grace ? grace_end : deadline, [this, rref, number, grace] { expire(rref, number, grace); });
        slot.waiters.push_back({number, timer, std::move(found)});
      }
    }
  }
  if (value.has_value()) found(*std::move(value));
}

void RRefService::expire(const Id& rref, uint64_t number, bool grace) {
  std::list<Waiter> expired;
  bool known = false;
  {
    MutexLock lock(mutex_);
    auto slot = slots_.find(rref);
    if (slot == slots_.end()) return;
    known = owner_table_.contains(rref);
    for (auto waiter = slot->second.waiters.begin(); waiter != slot->second.waiters.end(); ++waiter) {
      if (waiter->number == number) {
        expired.splice(expired.end(), slot->second.waiters, waiter);
        break;
      }
    }
    if (!known && slot->second.waiters.empty()) slots_.erase(slot);
  }
  for (Waiter& waiter : expired) {
    waiter.found(known && !grace
                     ? absl::DeadlineExceededError(absl::StrCat("the value of RRef ", to_string(rref), " was not made in time"))
                     : absl::NotFoundError(absl::StrCat("worker \"", agent_.self().name, "\" owns no RRef ",
                                                        to_string(rref), ": it was freed, or its creation failed")));
  }
}

std::shared_ptr<RRefHandle> RRefService::begin_remote(const Worker& owner, const std::string& type,
                                                      Promise<void> created) {
  const Id rref = agent_.next_id();
  const Id fork = agent_.next_id();
  Promise<void> confirmed(agent_.executor());
  {
    MutexLock lock(mutex_);
    holder_table_.add({rref, fork, owner.incarnation}, /*confirmed=*/false);
    unconfirmed_.emplace(fork, confirmed);
  }
  return std::make_shared<RRefHandle>(RRefHandle::Parts{weak_from_this(), rref, fork, owner, type, created.future(),
                                                        confirmed.future()});
}

void RRefService::end_remote(const std::shared_ptr<RRefHandle>& handle) {
  HolderTable::Deletes deletes;
  std::optional<Promise<void>> confirmed;
  {
    MutexLock lock(mutex_);
    deletes = holder_table_.confirm(handle->fork());
    if (auto found = unconfirmed_.find(handle->fork()); found != unconfirmed_.end()) {
      confirmed = found->second;
      unconfirmed_.erase(found);
    }
  }
  if (confirmed) {
    absl::Status created = handle->created().result();
    confirmed->set_result(created);
  }
  send_deletes(deletes);
}

void RRefService::serve(ServiceCall call) {
  absl::Status status;
  OwnerTable::Freed freed;
  HolderTable::Deletes deletes;
  proto::ForkAdd message;  // The three messages have the same fields.
  if (!message.ParseFromString(call.body) || !from_proto(message.fork())) {
    call.reply(absl::InvalidArgumentError(absl::StrCat("not a reference message: service ", call.service)));
    return;
  }
  const Id rref = from_proto(message.rref());
  const Id fork = from_proto(message.fork());
  {
    MutexLock lock(mutex_);
    switch (call.service) {
      case kForkAdd:
        freed = owner_table_.add_fork(rref, fork, call.from.incarnation);
        break;
      case kForkConfirmed:
        deletes = holder_table_.confirm_child(fork);
        break;
      default:
        freed = owner_table_.delete_fork(rref, fork, call.from.incarnation);
        break;
    }
  }
  call.reply(ServiceReply());
  free_values(freed);
  send_deletes(deletes);
}

void RRefService::worker_lost(const Worker& worker, const absl::Status& reason) {
  OwnerTable::Freed freed;
  HolderTable::Deletes deletes;
  std::vector<Promise<void>> never;
  {
    MutexLock lock(mutex_);
    freed = owner_table_.lose_holder(worker.incarnation);
    deletes = holder_table_.lose_worker(worker.incarnation);
    for (auto entry = unconfirmed_.begin(); entry != unconfirmed_.end();) {
      if (holder_table_.contains(entry->first)) {
        ++entry;
      } else {
        never.push_back(entry->second);
        unconfirmed_.erase(entry++);
      }
    }
  }
  for (const Promise<void>& promise : never) promise.set_error(reason);
  free_values(freed);
  send_deletes(deletes);
}

void RRefService::shutdown(const absl::Status& reason) {
  absl::flat_hash_map<Id, Slot> slots;
  absl::flat_hash_map<Id, Promise<void>> unconfirmed;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    slots.swap(slots_);
    unconfirmed.swap(unconfirmed_);
    owner_table_ = OwnerTable();
    holder_table_ = HolderTable();
  }
  for (auto& [rref, slot] : slots) {
    for (Waiter& waiter : slot.waiters) waiter.found(reason);
  }
  for (auto& [fork, promise] : unconfirmed) promise.set_error(reason);
  // Destructors of user objects run on the executor.
  agent_.executor()->post_or_run([slots = std::move(slots)] {});
}

void RRefService::release(const RRefHandle& handle) {
  OwnerTable::Freed freed;
  HolderTable::Deletes deletes;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (handle.is_owner()) {
      freed = owner_table_.delete_local(handle.rref());
    } else {
      deletes = holder_table_.release(handle.fork());
    }
  }
  free_values(freed);
  send_deletes(deletes);
}

void RRefService::free_values(const OwnerTable::Freed& freed) {
  std::vector<Slot> slots;
  {
    MutexLock lock(mutex_);
    for (const Id& rref : freed) {
      auto slot = slots_.find(rref);
      if (slot == slots_.end()) continue;
      slots.push_back(std::move(slot->second));
      slots_.erase(slot);
    }
  }
  for (Slot& slot : slots) {
    for (Waiter& waiter : slot.waiters) {
      agent_.timers().cancel(waiter.timer);
      waiter.found(absl::NotFoundError("the RRef was freed: its last reference has gone"));
    }
    slot.waiters.clear();
  }
  // Destructors of user objects run on the executor.
  if (!slots.empty()) agent_.executor()->post_or_run([slots = std::move(slots)] {});
}

void RRefService::send(const Worker& to, uint32_t service, std::string body,
                       absl::AnyInvocable<void(absl::Status)> done) {
  under_way_.fetch_add(1);
  agent_.call_service(to, service, std::move(body), nullptr, {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this(), done = std::move(done)](
                           const absl::StatusOr<ServiceReply>& reply) mutable {
        if (done) done(reply.status());
        self->under_way_.fetch_sub(1);
      });
}

void RRefService::send_deletes(const HolderTable::Deletes& deletes) {
  for (const HolderTable::Fork& fork : deletes) {
    absl::StatusOr<Worker> owner = agent_.find_worker_by_incarnation(fork.owner);
    if (!owner.ok()) continue;
    proto::ForkDelete message;
    to_proto(fork.rref, *message.mutable_rref());
    to_proto(fork.fork, *message.mutable_fork());
    send(*owner, kForkDelete, message.SerializeAsString(), nullptr);
  }
}

std::size_t RRefService::owned() const {
  MutexLock lock(mutex_);
  return std::max(owner_table_.size(), slots_.size());
}

std::size_t RRefService::forks() const {
  MutexLock lock(mutex_);
  return holder_table_.forks();
}

std::size_t RRefService::children() const {
  MutexLock lock(mutex_);
  return holder_table_.children();
}

}  // namespace gradwire::rpc
