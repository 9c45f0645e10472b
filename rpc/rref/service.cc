#include "gradwire/rpc/rref/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/agent/current_agent.h"
#include "gradwire/rpc/link/agent_tables.h"

namespace gradwire::rpc {
namespace {

// How long an RRef that is unknown here is waited for.
constexpr absl::Duration kGrace = absl::Seconds(10);

Future<void> ready() { return Future<void>(absl::OkStatus()); }

}  // namespace

RRefHandle::~RRefHandle() {
  if (std::shared_ptr<RRefService> service = parts_.service.lock()) service->release(*this);
}

std::shared_ptr<Agent> RRefHandle::agent() const {
  const std::shared_ptr<RRefService> service = parts_.service.lock();
  return service == nullptr ? nullptr : service->agent();
}

RRefService::RRefService(ReferenceHost& agent, Settlement& settlement)
    : agent_(agent),
      settlement_(settlement),
      weak_agent_(agent.weak_agent()),
      references_(agent.self().incarnation) {}

std::shared_ptr<Agent> RRefService::agent() const { return weak_agent_.lock(); }

std::shared_ptr<RRefHandle> RRefService::own(std::shared_ptr<void> value, const TypeOps* type) {
  const Id rref = agent_.next_id();
  {
    MutexLock lock(mutex_);
    if (!closed_) references_.own(rref);
  }
  set_value(rref, Owned{std::move(value), type, nullptr});
  return std::make_shared<RRefHandle>(
      RRefHandle::Parts{weak_from_this(), rref, Id(), agent_.self(), type->name(), ready(), ready()});
}

void RRefService::begin_value(const Id& rref, const Id& fork, const Worker& holder) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    References::Actions actions;
    references_.create(rref, fork, holder.incarnation, actions);
    effects = take_locked(std::move(actions));
    // It may be unwanted already: its creator is dead, or has deleted it.
    if (references_.owner().contains(rref)) slots_.try_emplace(rref);
  }
  perform(std::move(effects), absl::OkStatus());
}

void RRefService::set_value(const Id& rref, absl::StatusOr<Owned> value) {
  if (value.ok() && value->type->serial()) value->strand = std::make_shared<Strand>(agent_.executor());
  {
    MutexLock lock(mutex_);
    // Nobody refers to it any more: `value` goes when this returns.
    if (closed_ || !references_.owner().contains(rref)) return;
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
        const bool grace = !references_.owner().contains(rref) && grace_end < deadline;
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
    known = references_.owner().contains(rref);
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
  bool lost = false;
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the agent has been shut down");
    if (here) {
      references_.own(rref);
      slots_.try_emplace(rref);
    } else {
      references_.begin_creation(rref, fork, owner.incarnation);
      if (references_.holder().contains(fork)) {
        unconfirmed_.emplace(fork, confirmed);
      } else {
        lost = true;
      }
    }
  }
  if (lost) confirmed.set_error(absl::UnavailableError(absl::StrCat("worker \"", owner.name, "\" is gone")));
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
    tell([&](References& references, References::Actions& actions) {
      references.end_own_creation(handle.rref(), remote.fork, created.ok(), actions);
    });
    return;
  }
  std::optional<Promise<void>> confirmed;
  {
    MutexLock lock(mutex_);
    if (auto found = unconfirmed_.find(remote.fork); found != unconfirmed_.end()) {
      confirmed = found->second;
      unconfirmed_.erase(found);
    }
  }
  if (confirmed) confirmed->set_result(created);
  if (!created.ok()) creation_failed(remote);
  tell([&](References& references, References::Actions& actions) {
    references.end_creation(remote.fork, actions);
  });
}

void RRefService::shutdown(const absl::Status& reason) {
  absl::flat_hash_map<Id, Slot> slots;
  absl::flat_hash_map<Id, Promise<void>> unconfirmed;
  absl::flat_hash_map<uint64_t, FenceAsked> fences;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    slots.swap(slots_);
    unconfirmed.swap(unconfirmed_);
    references_ = References(agent_.self().incarnation);
    fences.swap(fences_asked_);
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
  // Most go in no time, so that no thread is woken for it while one is about.
  static TaskCost* const cost = new TaskCost;
  Executor::Task task = [agent = weak_agent_, slots = std::move(slots)]() mutable {
    std::shared_ptr<Agent> alive = agent.lock();
    if (alive == nullptr) return;
    CurrentAgent::Scope scope(alive);
    Slots going = std::move(slots);
  };
  if (!agent_.executor()->post_clean(task, cost)) task();
}

// A handle is dropped on any thread, perhaps with a user's lock held. To send may resolve a name and connect, so another
// thread does that.
void RRefService::release(const RRefHandle& handle) {
  Effects effects;
  std::vector<ReferenceMessage> messages;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    References::Actions actions;
    if (handle.is_owner()) {
      references_.release_local(handle.rref(), actions);
    } else {
      references_.release(handle.fork(), actions);
    }
    effects = take_locked(std::move(actions));
    messages.swap(effects.messages);
    // One for the task below: nobody sees a moment without the handle and without its message.
    if (!messages.empty()) under_way_.fetch_add(1);
  }
  perform(std::move(effects), absl::OkStatus());
  if (messages.empty()) return;
  static TaskCost* const cost = new TaskCost;
  Executor::Task task = [self = shared_from_this(), agent = weak_agent_,
                         messages = std::move(messages)]() mutable {
    if (const std::shared_ptr<Agent> alive = agent.lock()) {
      for (ReferenceMessage& message : messages) self->send(std::move(message));
    }
    self->under_way_.fetch_sub(1);
  };
  // Refused: the agent has shut down, and sends nothing any more.
  if (!agent_.executor()->post_clean(task, cost)) task();
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

void RRefService::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  tables.owned_rrefs = std::max(references_.owner().size(), slots_.size());
  tables.values = slots_.size();
  tables.held_forks = references_.holder().forks();
  tables.unconfirmed_children = references_.holder().children();
  tables.remembered_deletes = references_.owner().remembered_deletes();
  tables.unsent_children = references_.unsent();
  tables.reference_messages = references_.unacknowledged();
  tables.unconfirmed_forks = unconfirmed_.size();
  tables.revoked_references = references_.revoked();
  tables.fences_asked = fences_asked_.size() + references_.unanswered_fences();
  tables.unfenced_workers = references_.unfenced();
  tables.gone_workers += references_.lost();
}

}  // namespace gradwire::rpc
