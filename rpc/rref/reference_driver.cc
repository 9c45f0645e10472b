#include "gradwire/rpc/rref/reference_driver.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/threads/nested_callbacks.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/current_agent.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/registry/server_call.h"
#include "gradwire/rpc/rref/reference_codec.h"

// Each event has three steps: change the tables under the lock (References decides), move out what the event
// frees and completes (take_locked), and perform it without the lock (perform). Completing a promise and
// destroying a value run code of the user, which may call this object again. Sending may run the completion
// of a call.
// A message that is being sent keeps the driver alive until it is answered. Its completion counts down
// under_way_, which a graceful shutdown waits for.
// An event that has changed the tables must be performed: other workers wait for its messages, and a shutdown
// for its handles. So an event without memory ends the process.
namespace gradwire::rpc {

using Actions = References::Actions;
using Answer = ReferenceMessage::Answer;
using Kind = ReferenceMessage::Kind;

namespace {

constexpr const char* kEvent = "an event of remote references";

void take(const std::vector<Id>& forks, HashMap<Id, Promise<void>>& unconfirmed,
          std::vector<Promise<void>>& promises) {
  for (const Id& fork : forks) {
    auto found = unconfirmed.find(fork);
    if (found == unconfirmed.end()) continue;
    promises.push_back(std::move(found->second));
    unconfirmed.erase(found);
  }
}

}  // namespace

ValueSlot::Waiters ReferenceDriver::Tables::take_waiters(ValueSlot& slot) {
  waits -= slot.waiters.size();
  return std::exchange(slot.waiters, {});
}

ValueSlot::Waiter* ReferenceDriver::Tables::find_waiter(const Id& rref, uint64_t number) {
  auto slot = values.find(rref);
  if (slot == values.end()) return nullptr;
  auto waiter = slot->second.waiters.find(number);
  return waiter == slot->second.waiters.end() ? nullptr : &waiter->second;
}

std::optional<ValueSlot::Waiter> ReferenceDriver::Tables::take_waiter(const Id& rref, uint64_t number) {
  ValueSlot::Waiter* const found = find_waiter(rref, number);
  if (found == nullptr) return std::nullopt;
  ValueSlot::Waiter taken = std::move(*found);
  auto slot = values.find(rref);
  slot->second.waiters.erase(number);
  --waits;
  if (!slot->second.value.has_value() && slot->second.waiters.empty() && !references.owner().contains(rref))
    values.erase(slot);
  return taken;
}

ReferenceDriver::ReferenceDriver(ReferenceHost& agent, ArrivalOrder& arrival_order,
                                 const ReferenceBounds& bounds)
    : agent_(agent),
      arrival_order_(arrival_order),
      weak_agent_(agent.weak_agent()),
      tables_{References(agent.self().incarnation, bounds), {}, {}} {}

ReferenceDriver::Effects ReferenceDriver::take_locked(Actions actions) {
  Effects effects;
  for (const Id& rref : actions.freed) {
    auto slot = tables_.values.find(rref);
    if (slot == tables_.values.end()) continue;
    effects.waiting_for_freed.merge(tables_.take_waiters(slot->second));
    effects.freed.push_back(std::move(slot->second));
    tables_.values.erase(slot);
  }
  take(actions.confirmed, tables_.unconfirmed, effects.confirmed);
  take(actions.refused, tables_.unconfirmed, effects.refused);
  for (const Actions::FenceAnswer& answer : actions.fence_answers) {
    // A later fence of the same worker has replaced the one that this answers. That worker waits only for its
    // latest round.
    auto asked = fences_asked_.find(answer.asker);
    if (asked == fences_asked_.end() || asked->second.round != answer.round) continue;
    effects.answers.push_back(std::move(asked->second.reply));
    fences_asked_.erase(asked);
  }
  effects.messages = std::move(actions.send);
  effects.accused = std::move(actions.accused);
  return effects;
}

void ReferenceDriver::perform(Effects effects, const absl::Status& refusal) {
  // Futures and answers first: they free nothing. Accusations last: they may lose a worker, which is an event
  // of its own and calls apply() again.
  for (const Promise<void>& promise : effects.confirmed) promise.set_value();
  for (const Promise<void>& promise : effects.refused) {
    promise.set_error(refusal.ok() ? absl::AbortedError("the owner of the RRef has declared this worker lost")
                                   : refusal);
  }
  for (const auto& reply : effects.answers) reply(ServiceReply());
  call_back(std::move(effects.waiting_for_freed),
            absl::NotFoundError("the RRef was freed: its last reference was destroyed"));
  destroy(std::move(effects.freed));
  for (ReferenceMessage& message : effects.messages) send(std::move(message));
  for (uint64_t worker : effects.accused) agent_.on_accused(worker);
}

bool ReferenceDriver::apply(absl::FunctionRef<void(Tables&, Actions&)> event, const absl::Status& refusal) {
  bool open = true;
  run_or_end(kEvent, [&] {
    Effects effects;
    {
      MutexLock lock(mutex_);
      if (closed_) {
        open = false;
        return;
      }
      Actions actions;
      event(tables_, actions);
      effects = take_locked(std::move(actions));
    }
    perform(std::move(effects), refusal);
  });
  return open;
}

// A user may hold a lock while a handle is destroyed, and sending takes locks of its own. So:
// 1. Apply the event, under the lock.
// 2. Perform its other effects on this thread.
// 3. Send the messages on a thread of the executor.
void ReferenceDriver::release(const Id& rref, const Id& fork) {
  if (!mark_.here()) return;
  run_or_end(kEvent, [&] { release_in_process(rref, fork); });
}

void ReferenceDriver::release_in_process(const Id& rref, const Id& fork) {
  Effects effects;
  std::vector<ReferenceMessage> messages;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    Actions actions;
    tables_.references.release(rref, fork, actions);
    effects = take_locked(std::move(actions));
    messages.swap(effects.messages);
    // Counts the task below, so that a graceful shutdown never sees neither the handle nor its message.
    if (!messages.empty()) under_way_.fetch_add(1);
  }
  perform(std::move(effects), absl::OkStatus());
  if (messages.empty()) return;
  static TaskCost* const cost = new TaskCost;
  // When the executor refuses the task, the agent has shut down and sends nothing any more.
  agent_.executor()->post_clean_or_run(
      [self = shared_from_this(), messages = std::move(messages)]() mutable {
        run_or_end(kEvent, [&] {
          if (const std::shared_ptr<Agent> alive = self->agent()) {
            for (ReferenceMessage& message : messages) self->send(std::move(message));
          }
          self->under_way_.fetch_sub(1);
        });
      },
      cost);
}

void ReferenceDriver::call_back(ValueSlot::Waiters waiters, const absl::Status& reason) {
  if (waiters.empty()) return;
  for (const auto& [number, waiter] : waiters) agent_.timers().cancel(waiter.timer);
  // A call that ends here may hold the last reference to another value, for which other calls wait.
  run_nested(
      [waiters = std::move(waiters), reason]() mutable {
        for (auto& [number, waiter] : waiters) waiter.found(reason);
      },
      "the end of waits for a value");
}

template <class Slots>
void ReferenceDriver::destroy(Slots slots) {
  if (slots.empty()) return;
  // Most destructors are short. With a cost, the executor does not wake a thread while another one is
  // running.
  static TaskCost* const cost = new TaskCost;
  // After shutdown the values are destroyed on this thread.
  agent_.executor()->post_clean_or_run(
      [agent = weak_agent_, slots = std::move(slots)]() mutable {
        std::shared_ptr<Agent> alive = agent.lock();
        // `slots` are destroyed with the task, without a current agent.
        if (alive == nullptr) return;
        CurrentAgent::Scope scope(alive);
        Slots going = std::move(slots);
      },
      cost);
}

void ReferenceDriver::send(ReferenceMessage message) {
  absl::StatusOr<Worker> to = agent_.find_worker_by_incarnation(message.to);
  // The receiver has not joined here yet, or is forgotten. The message stays in the outbox, and
  // worker_joined() sends it.
  if (!to.ok()) return;
  // Counted before the send: the answer may arrive inside call_service().
  under_way_.fetch_add(1);
  const uint32_t service = service_of(message.kind);
  // The departures are read now, after every message with this fork was sent. Repetitions carry the same
  // ones.
  std::string body =
      serialize(message, has_departures(message.kind) ? arrival_order_.departures(message.to) : Departures());
  agent_.call_service(*to, service, std::move(body), nullptr, {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this(),
                        message = std::move(message)](const absl::StatusOr<ServiceReply>& reply) {
        self->answered(message, reply);
        self->under_way_.fetch_sub(1);
      });
}

void ReferenceDriver::answered(const ReferenceMessage& message, const absl::StatusOr<ServiceReply>& reply) {
  // Aborted: the receiver has declared this worker lost and accepts nothing from it. PermissionDenied and
  // ResourceExhausted: the owner's policy, or its limit, does not let this worker hold the reference. Any
  // other error says nothing about the reference, so the message stays unanswered until its receiver is lost.
  // A fence stays unanswered after any error.
  const bool refused = absl::IsAborted(reply.status()) && message.kind != Kind::kFence;
  const bool denied =
      (absl::IsPermissionDenied(reply.status()) || absl::IsResourceExhausted(reply.status())) &&
      message.kind == Kind::kAdd;
  if (!reply.ok() && !refused && !denied) return;
  const Answer answer = refused  ? Answer::kRefused
                        : denied ? Answer::kDenied
                                 : answer_of(message.kind, *reply);
  apply([&](Tables& tables, Actions& actions) { tables.references.on_answer(message, answer, actions); },
        denied ? reply.status() : absl::OkStatus());
}

void ReferenceDriver::creation_failed(const Worker& owner, const Id& rref, const Id& fork) {
  run_or_end(kEvent, [&] {
    proto::CreationFailed message;
    to_proto(rref, *message.mutable_rref());
    to_proto(fork, *message.mutable_fork());
    under_way_.fetch_add(1);
    agent_
        .call_service(owner, kCreationFailed, message.SerializeAsString(), nullptr,
                      {absl::InfiniteFuture(), /*repeat=*/true})
        .on_ready_inline([self = shared_from_this()](const auto&) { self->under_way_.fetch_sub(1); });
  });
}

void ReferenceDriver::serve(const ServiceCall& call) {
  Departures sent;
  std::optional<ReferenceMessage> message = parse(call.service, call.body, sent);
  if (!message) {
    call.reply(
        absl::InvalidArgumentError(absl::StrCat("malformed reference message for service ", call.service)));
    return;
  }
  run_or_end(kEvent, [&] { handle(call, *message, sent); });
}

void ReferenceDriver::handle(const ServiceCall& call, const ReferenceMessage& message,
                             const Departures& sent) {
  std::optional<Answer> answer;
  // An earlier fence of the asker, replaced by this one. It is destroyed outside the lock.
  FenceAsked replaced;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    Actions actions;
    // Under the lock, as in settled() below: the order of arrival must not change between this question and
    // the entry that on_message() remembers because of the answer.
    const bool settled = has_departures(message.kind) && arrival_order_.require(call.from.incarnation, sent);
    answer = tables_.references.on_message(call.from.incarnation, message, settled, actions);
    // No earlier message of the sender can arrive, so what was remembered for such messages goes.
    if (settled) tables_.references.settle(call.from.incarnation);
    if (!answer) {
      FenceAsked& asked = fences_asked_[call.from.incarnation];
      replaced = std::exchange(asked, {message.round, call.reply});
    }
    effects = take_locked(std::move(actions));
  }
  // Answered before the effects are performed, which may take longer. Without an answer the fence is answered
  // later (take_locked).
  if (answer == Answer::kRefused) {
    call.reply(declared_dead(call.from.name, agent_.self().name));
  } else if (answer) {
    call.reply(reply_of(message.kind, *answer));
  }
  perform(std::move(effects), absl::OkStatus());
}

void ReferenceDriver::worker_joined(const Worker& worker) {
  apply([&](Tables& tables, Actions& actions) {
    tables.references.join(worker.incarnation);
    // Messages to this worker that could not be sent before its address was known.
    for (ReferenceMessage& message : tables.references.peers().unacknowledged(worker.incarnation)) {
      actions.send.push_back(std::move(message));
    }
  });
}

void ReferenceDriver::lose(uint64_t incarnation, const absl::Status& reason) {
  apply([&](Tables& tables, Actions& actions) { tables.references.lose(incarnation, actions); }, reason);
  drop_fence_of(incarnation);
}

void ReferenceDriver::drop_fence_of(uint64_t asker) {
  FenceAsked dropped;  // Destroyed outside the lock.
  MutexLock lock(mutex_);
  auto asked = fences_asked_.find(asker);
  if (asked == fences_asked_.end()) return;
  dropped = std::move(asked->second);
  fences_asked_.erase(asked);
}

void ReferenceDriver::death_agreed(uint64_t incarnation) {
  apply([&](Tables& tables, Actions& actions) { tables.references.fence(incarnation, actions); });
}

void ReferenceDriver::forget(uint64_t incarnation) {
  apply([&](Tables& tables, Actions& actions) {
    tables.references.lose(incarnation, actions);
    tables.references.fence(incarnation, actions);
  });
  drop_fence_of(incarnation);
}

void ReferenceDriver::link_restored(const Worker& worker) {
  apply([&](Tables& tables, Actions& actions) {
    tables.references.link_restored(worker.incarnation, actions);
  });
}

void ReferenceDriver::settled(const Worker& worker) {
  apply([&](Tables& tables, Actions&) {
    // Asked again under the lock: since the event another message may have required more.
    if (arrival_order_.settled(worker.incarnation)) tables.references.settle(worker.incarnation);
  });
}

void ReferenceDriver::shutdown(const absl::Status& reason) {
  // Moved out under the lock and destroyed without it. From here on apply() does nothing, so no event can use
  // the empty tables.
  Tables ended{References(agent_.self().incarnation), {}, {}};
  HashMap<uint64_t, FenceAsked> fences;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    std::swap(ended, tables_);
    fences.swap(fences_asked_);
  }
  for (auto& [rref, slot] : ended.values) {
    call_back(std::exchange(slot.waiters, {}), reason);
  }
  for (auto& [fork, promise] : ended.unconfirmed) promise.set_error(reason);
  destroy(std::move(ended.values));
}

std::size_t ReferenceDriver::forks_of(uint64_t holder) const {
  MutexLock lock(mutex_);
  return tables_.references.owner().count_forks_of(holder);
}

void ReferenceDriver::view(absl::FunctionRef<void(const Tables&)> visit) const {
  MutexLock lock(mutex_);
  visit(tables_);
}

std::string ReferenceDriver::stream_of(const Id& rref) const {
  OwnedValue stream;
  view([&](const Tables& tables) {
    const auto found = tables.values.find(rref);
    if (found == tables.values.end()) return;
    const std::optional<absl::StatusOr<OwnedValue>>& value = found->second.value;
    if (!value || !value->ok() || (*value)->type == nullptr) return;
    if ((*value)->type->stream_of != nullptr) stream = **value;
  });
  // Without the lock, because the stream has one of its own.
  return stream.value == nullptr ? "" : stream.type->stream_of(stream.value.get());
}

void ReferenceDriver::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  const References& references = tables_.references;
  tables.owned_rrefs = std::max(references.owner().size(), tables_.values.size());
  tables.values = tables_.values.size();
  tables.waits_for_values = tables_.waits;
  tables.held_forks = references.holder().forks();
  tables.unconfirmed_children = references.holder().children();
  tables.remembered_deletes = references.owner().remembered_deletes();
  tables.unsent_children = references.revocations().unsent();
  tables.reference_messages = references.peers().unacknowledged();
  tables.unconfirmed_forks = tables_.unconfirmed.size();
  tables.revoked_references = references.revocations().revoked();
  tables.fences_asked = fences_asked_.size() + references.fences().unanswered();
  tables.unfenced_workers = references.fences().unfenced();
  tables.gone_workers += references.peers().lost().size();
}

}  // namespace gradwire::rpc
