#include "rpc/rref/service.h"

#include <algorithm>
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

RRefService::RRefService(Agent& agent) : agent_(agent), weak_agent_(agent.weak_from_this()) {}

std::shared_ptr<Agent> RRefService::agent() const { return weak_agent_.lock(); }

std::shared_ptr<RRefHandle> RRefService::own(std::shared_ptr<void> value, const TypeOps* type) {
  const Id rref = agent_.next_id();
  {
    MutexLock lock(mutex_);
    if (!closed_) owner_table_.add_local(rref);
  }
  set_value(rref, Owned{std::move(value), type, nullptr});
  return std::make_shared<RRefHandle>(
      RRefHandle::Parts{weak_from_this(), rref, Id(), agent_.self(), type->name(), ready(), ready()});
}

void RRefService::begin_value(const Id& rref, const Id& fork, const Worker& holder) {
  std::vector<Slot> freed;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    slots_.try_emplace(rref);
    freed = take_freed_locked(owner_table_.add_fork(rref, fork, holder.incarnation));
  }
  free_values(std::move(freed));
}

void RRefService::set_value(const Id& rref, absl::StatusOr<Owned> value) {
  if (value.ok() && value->type->serial()) value->strand = std::make_shared<Strand>(agent_.executor());
  {
    MutexLock lock(mutex_);
    // Nobody refers to it any more: `value` goes when this returns.
    if (closed_ || !owner_table_.contains(rref)) return;
    Slot& slot = slots_[rref];
    if (slot.value.has_value()) return;
    slot.value = value;
    slot.announcing = true;
  }
  while (true) {
    std::list<Waiter> waiters;
    {
      MutexLock lock(mutex_);
      auto slot = slots_.find(rref);
      if (slot == slots_.end()) return;  // Freed meanwhile.
      waiters.swap(slot->second.waiters);
      if (waiters.empty()) {
        slot->second.announcing = false;
        return;
      }
    }
    for (Waiter& waiter : waiters) {
      agent_.timers().cancel(waiter.timer);
      waiter.found(value);
    }
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
      if (slot.announcing) {
        slot.waiters.push_back({next_waiter_++, 0, std::move(found)});
      } else if (slot.value.has_value()) {
        value = slot.value;
      } else {
        const absl::Time grace_end = agent_.timers().clock().now() + kGrace;
        const bool grace = !owner_table_.contains(rref) && grace_end < deadline;
        const uint64_t number = next_waiter_++;
        // The timers end before this does.
        const uint64_t timer = agent_.timers().schedule(
            grace ? grace_end : deadline,
            [this, rref, number, deadline, grace] { expire(rref, number, deadline, grace); });
        slot.waiters.push_back({number, timer, std::move(found)});
      }
    }
  }
  if (value.has_value()) found(*std::move(value));
}

void RRefService::expire(const Id& rref, uint64_t number, absl::Time deadline, bool grace) {
  std::list<Waiter> expired;
  bool known = false;
  {
    MutexLock lock(mutex_);
    auto slot = slots_.find(rref);
    if (slot == slots_.end()) return;
    known = owner_table_.contains(rref);
    std::list<Waiter>& waiters = slot->second.waiters;
    auto waiter = std::find_if(waiters.begin(), waiters.end(),
                               [number](const Waiter& w) { return w.number == number; });
    if (waiter == waiters.end()) return;
    if (known && grace) {
      // The creating request came meanwhile: the value is being made.
      waiter->timer = agent_.timers().schedule(
          deadline, [this, rref, number, deadline] { expire(rref, number, deadline, /*grace=*/false); });
      return;
    }
    expired.splice(expired.end(), waiters, waiter);
    if (!known && waiters.empty()) slots_.erase(slot);
  }
  expired.front().found(
      known ? absl::DeadlineExceededError(
                  absl::StrCat("the value of RRef ", to_string(rref), " was not made in time"))
            : absl::NotFoundError(absl::StrCat("worker \"", agent_.self().name, "\" owns no RRef ",
                                               to_string(rref), ": it was freed, or its creation failed")));
}

absl::StatusOr<RRefService::Remote> RRefService::begin_remote(const Worker& owner, const std::string& type,
                                                              Promise<void> created) {
  const Id rref = agent_.next_id();
  const Id fork = agent_.next_id();
  const bool here = owner == agent_.self();
  Promise<void> confirmed(agent_.executor());
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the agent has been shut down");
    if (here) {
      owner_table_.add_local(rref);
      slots_.try_emplace(rref);
    } else {
      holder_table_.add({rref, fork, owner.incarnation}, /*confirmed=*/false);
      unconfirmed_.emplace(fork, confirmed);
    }
  }
  return Remote{
      std::make_shared<RRefHandle>(RRefHandle::Parts{weak_from_this(), rref, here ? Id() : fork, owner, type,
                                                     created.future(), here ? ready() : confirmed.future()}),
      fork};
}

void RRefService::end_remote(const Remote& remote, const absl::Status& created) {
  const RRefHandle& handle = *remote.handle;
  if (handle.is_owner()) {
    // Wakes who waits here, if the request could not do it.
    if (!created.ok()) set_value(handle.rref(), created);
    std::vector<Slot> freed;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      freed =
          take_freed_locked(owner_table_.delete_fork(handle.rref(), remote.fork, agent_.self().incarnation));
    }
    free_values(std::move(freed));
    return;
  }
  HolderTable::Deletes deletes;
  std::optional<Promise<void>> confirmed;
  {
    MutexLock lock(mutex_);
    deletes = holder_table_.confirm(remote.fork);
    if (auto found = unconfirmed_.find(remote.fork); found != unconfirmed_.end()) {
      confirmed = found->second;
      unconfirmed_.erase(found);
    }
  }
  if (confirmed) confirmed->set_result(created);
  send_deletes(deletes);
}

void RRefService::serve(ServiceCall call) {
  std::vector<Slot> freed;
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
    if (closed_) return;
    switch (call.service) {
      case kForkAdd:
        freed = take_freed_locked(owner_table_.add_fork(rref, fork, call.from.incarnation));
        break;
      case kForkConfirmed:
        deletes = holder_table_.confirm_child(fork, call.from.incarnation);
        break;
      default:
        freed = take_freed_locked(owner_table_.delete_fork(rref, fork, call.from.incarnation));
        break;
    }
  }
  call.reply(ServiceReply());
  free_values(std::move(freed));
  send_deletes(deletes);
}

void RRefService::worker_lost(const Worker& worker, const absl::Status& reason) {
  std::vector<Slot> freed;
  HolderTable::Deletes deletes;
  std::vector<Promise<void>> never;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    freed = take_freed_locked(owner_table_.lose_holder(worker.incarnation));
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
  free_values(std::move(freed));
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
  destroy(std::move(slots));
}

template <class Slots>
void RRefService::destroy(Slots slots) {
  if (slots.empty()) return;
  agent_.executor()->post_or_run([agent = weak_agent_, slots = std::move(slots)]() mutable {
    std::shared_ptr<Agent> alive = agent.lock();
    if (alive == nullptr) return;
    AgentGuard guard(alive);
    Slots going = std::move(slots);
  });
}

void RRefService::release(const RRefHandle& handle) {
  std::vector<Slot> freed;
  HolderTable::Deletes deletes;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (handle.is_owner()) {
      freed = take_freed_locked(owner_table_.delete_local(handle.rref()));
    } else {
      deletes = holder_table_.release(handle.fork());
    }
  }
  free_values(std::move(freed));
  send_deletes(deletes);
}

std::vector<RRefService::Slot> RRefService::take_freed_locked(const OwnerTable::Freed& freed) {
  std::vector<Slot> slots;
  for (const Id& rref : freed) {
    auto slot = slots_.find(rref);
    if (slot == slots_.end()) continue;
    slots.push_back(std::move(slot->second));
    slots_.erase(slot);
  }
  return slots;
}

void RRefService::free_values(std::vector<Slot> slots) {
  for (Slot& slot : slots) {
    for (Waiter& waiter : slot.waiters) {
      agent_.timers().cancel(waiter.timer);
      waiter.found(absl::NotFoundError("the RRef was freed: its last reference has gone"));
    }
    slot.waiters.clear();
  }
  destroy(std::move(slots));
}

void RRefService::send(const Worker& to, uint32_t service, std::string body,
                       absl::AnyInvocable<void(absl::Status)> done) {
  under_way_.fetch_add(1);
  agent_.call_service(to, service, std::move(body), nullptr, {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this(),
                        done = std::move(done)](const absl::StatusOr<ServiceReply>& reply) mutable {
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
