#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/link/departures_codec.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/rref/service.h"

// Between the reference protocol, which decides, and the agent, which sends and frees.
namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

namespace {

uint32_t service_of(Kind kind) {
  switch (kind) {
    case Kind::kAdd:
      return kForkAdd;
    case Kind::kConfirm:
      return kForkConfirmed;
    case Kind::kDelete:
      return kForkDelete;
    case Kind::kRevoke:
      return kForkRevoke;
    case Kind::kFence:
      break;
  }
  return kFence;
}

// Whether what its sender has sent before matters to the message.
bool says_what_was_sent(Kind kind) { return kind == Kind::kDelete || kind == Kind::kRevoke; }

// `sent` is used by those messages alone.
std::string serialize(const ReferenceMessage& message, const Departures& sent) {
  if (message.kind == Kind::kFence) {
    proto::Fence fence;
    fence.set_round(message.round);
    fence.mutable_dead()->Add(message.dead.begin(), message.dead.end());
    return fence.SerializeAsString();
  }
  proto::ForkDelete out;  // Those about one fork have the same fields, some without the last.
  to_proto(message.rref, *out.mutable_rref());
  to_proto(message.fork, *out.mutable_fork());
  if (says_what_was_sent(message.kind)) to_proto(sent, *out.mutable_sent());
  return out.SerializeAsString();
}

std::optional<ReferenceMessage> parse(uint32_t service, const std::string& body, Departures& sent) {
  ReferenceMessage message;
  if (service == kFence) {
    proto::Fence fence;
    constexpr int kMaxDead = 65536;
    if (!fence.ParseFromString(body) || fence.dead_size() > kMaxDead) return std::nullopt;
    message.kind = Kind::kFence;
    message.round = fence.round();
    message.dead.assign(fence.dead().begin(), fence.dead().end());
    return message;
  }
  proto::ForkDelete in;
  if (!in.ParseFromString(body) || !from_proto(in.fork())) return std::nullopt;
  std::optional<Departures> said = from_proto(in.sent());
  if (!said) return std::nullopt;
  sent = *std::move(said);
  message.rref = from_proto(in.rref());
  message.fork = from_proto(in.fork());
  for (Kind kind : {Kind::kAdd, Kind::kConfirm, Kind::kDelete, Kind::kRevoke}) {
    if (service_of(kind) == service) message.kind = kind;
  }
  return message;
}

ServiceReply reply_of(Kind kind, Answer answer) {
  ServiceReply reply;
  reply.late = kind == Kind::kDelete;
  if (kind == Kind::kRevoke) {
    proto::ForkRevoked revoked;
    revoked.set_received(answer == Answer::kReceived);
    reply.body = revoked.SerializeAsString();
  }
  return reply;
}

Answer answer_of(Kind kind, const ServiceReply& reply) {
  if (kind != Kind::kRevoke) return Answer::kDone;
  proto::ForkRevoked revoked;
  // Where the answer makes no sense the reference is kept: that is the side on which nothing breaks.
  return revoked.ParseFromString(reply.body) && !revoked.received() ? Answer::kNever : Answer::kReceived;
}

}  // namespace

RRefService::Effects RRefService::take_locked(References::Actions actions) {
  Effects effects;
  for (const Id& rref : actions.freed) {
    auto slot = slots_.find(rref);
    if (slot == slots_.end()) continue;
    effects.freed.push_back(std::move(slot->second));
    slots_.erase(slot);
  }
  const auto take = [this](const std::vector<Id>& forks, std::vector<Promise<void>>& promises)
                        ABSL_NO_THREAD_SAFETY_ANALYSIS {
                          for (const Id& fork : forks) {
                            auto found = unconfirmed_.find(fork);
                            if (found == unconfirmed_.end()) continue;
                            promises.push_back(std::move(found->second));
                            unconfirmed_.erase(found);
                          }
                        };
  take(actions.confirmed, effects.confirmed);
  take(actions.refused, effects.refused);
  for (const References::Actions::FenceAnswer& answer : actions.fence_answers) {
    auto asked = fences_asked_.find(answer.asker);
    if (asked == fences_asked_.end() || asked->second.round != answer.round) continue;
    effects.answers.push_back(std::move(asked->second.reply));
    fences_asked_.erase(asked);
  }
  effects.messages = std::move(actions.send);
  effects.accused = std::move(actions.accused);
  return effects;
}

void RRefService::perform(Effects effects, const absl::Status& refusal) {
  for (const Promise<void>& promise : effects.confirmed) promise.set_value();
  for (const Promise<void>& promise : effects.refused) {
    promise.set_error(
        refusal.ok() ? absl::AbortedError("the owner of the RRef takes nothing from this worker any more")
                     : refusal);
  }
  for (const auto& reply : effects.answers) reply(ServiceReply());
  if (!effects.freed.empty()) free_values(std::move(effects.freed));
  for (ReferenceMessage& message : effects.messages) send(std::move(message));
  for (uint64_t worker : effects.accused) agent_.on_accused(worker);
}

void RRefService::tell(absl::FunctionRef<void(References&, References::Actions&)> event,
                       const absl::Status& refusal) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    References::Actions actions;
    event(references_, actions);
    effects = take_locked(std::move(actions));
  }
  perform(std::move(effects), refusal);
}

void RRefService::send(ReferenceMessage message) {
  absl::StatusOr<Worker> to = agent_.find_worker_by_incarnation(message.to);
  if (!to.ok()) return;
  under_way_.fetch_add(1);
  const uint32_t service = service_of(message.kind);
  // Composed now, after everything that was sent of this fork; a repetition says the same.
  std::string body = serialize(
      message, says_what_was_sent(message.kind) ? settlement_.departures(message.to) : Departures());
  agent_.call_service(*to, service, std::move(body), nullptr, {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this(),
                        message = std::move(message)](const absl::StatusOr<ServiceReply>& reply) {
        self->answered(message, reply);
        self->under_way_.fetch_sub(1);
      });
}

void RRefService::answered(const ReferenceMessage& message, const absl::StatusOr<ServiceReply>& reply) {
  // Aborted is the receiver's word that it takes nothing from this worker. Any other error says nothing of the
  // reference: the question stays open until its receiver is lost. So does that of a fence, whatever the error.
  const bool refused = absl::IsAborted(reply.status()) && message.kind != Kind::kFence;
  if (!reply.ok() && !refused) return;
  const Answer answer = refused ? Answer::kRefused : answer_of(message.kind, *reply);
  tell([&](References& references, References::Actions& actions) {
    references.on_answer(message, answer, actions);
  });
}

void RRefService::creation_failed(const Remote& remote) {
  proto::CreationFailed message;
  to_proto(remote.handle->rref(), *message.mutable_rref());
  to_proto(remote.fork, *message.mutable_fork());
  under_way_.fetch_add(1);
  agent_
      .call_service(remote.handle->owner(), kCreationFailed, message.SerializeAsString(), nullptr,
                    {absl::InfiniteFuture(), /*repeat=*/true})
      .on_ready_inline([self = shared_from_this()](const auto&) { self->under_way_.fetch_sub(1); });
}

void RRefService::serve_creation_failed(const ServiceCall& call) {
  proto::CreationFailed message;
  if (!message.ParseFromString(call.body)) {
    call.reply(absl::InvalidArgumentError("not a reference message: CreationFailed"));
    return;
  }
  const Id rref = from_proto(message.rref());
  const absl::Status failed =
      absl::AbortedError("the request that was to make the value failed before it came here");
  bool waited_for = false;
  std::list<Waiter> waiters;
  {
    MutexLock lock(mutex_);
    // The request has not come: others may wait for the value all the same, who got a reference to it. Should it come
    // after this, it comes too late.
    auto slot = slots_.find(rref);
    waited_for = slot != slots_.end() && !slot->second.value.has_value() &&
                 rref.origin == call.from.incarnation &&
                 !references_.owner().has_fork(rref, from_proto(message.fork()));
    // Calls alone wait for it, without a fork: what keeps the error for others would have nobody to let it go.
    if (waited_for && !references_.owner().contains(rref)) {
      waiters.swap(slot->second.waiters);
      slots_.erase(slot);
    }
  }
  if (waited_for) set_value(rref, failed);
  for (Waiter& waiter : waiters) {
    agent_.timers().cancel(waiter.timer);
    waiter.found(failed);
  }
  call.reply(ServiceReply());
}

void RRefService::serve(const ServiceCall& call) {
  if (call.service == kCreationFailed) {
    serve_creation_failed(call);
    return;
  }
  Departures sent;
  std::optional<ReferenceMessage> message = parse(call.service, call.body, sent);
  if (!message) {
    call.reply(absl::InvalidArgumentError(absl::StrCat("not a reference message: service ", call.service)));
    return;
  }
  std::optional<Answer> answer;
  // The asker has a newer question, or lost the connection of this one: it goes outside the lock.
  FenceAsked replaced;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    References::Actions actions;
    // Under the lock, as settled() below: between the question and what is remembered because of the answer nothing may
    // settle.
    const bool settled =
        says_what_was_sent(message->kind) && settlement_.require(call.from.incarnation, sent);
    answer = references_.on_message(call.from.incarnation, *message, settled, actions);
    if (settled) references_.settle(call.from.incarnation);
    if (!answer) {
      FenceAsked& asked = fences_asked_[call.from.incarnation];
      replaced = std::exchange(asked, {message->round, call.reply});
    }
    effects = take_locked(std::move(actions));
  }
  if (answer == Answer::kRefused) {
    call.reply(declared_dead(call.from.name, agent_.self().name));
  } else if (answer) {
    call.reply(reply_of(message->kind, *answer));
  }
  perform(std::move(effects), absl::OkStatus());
}

void RRefService::worker_joined(const Worker& worker) {
  tell([&](References& references, References::Actions& actions) {
    references.join(worker.incarnation);
    // What was to be sent before it was known who that is.
    for (ReferenceMessage& message : references.unacknowledged(worker.incarnation)) {
      actions.send.push_back(std::move(message));
    }
  });
}

void RRefService::worker_lost(const Worker& worker, const absl::Status& reason) {
  tell([&](References& references,
           References::Actions& actions) { references.lose(worker.incarnation, actions); },
       reason);
  drop_fence_of(worker.incarnation);
}

void RRefService::drop_fence_of(uint64_t asker) {
  FenceAsked dropped;  // It goes outside the lock.
  MutexLock lock(mutex_);
  auto asked = fences_asked_.find(asker);
  if (asked == fences_asked_.end()) return;
  dropped = std::move(asked->second);
  fences_asked_.erase(asked);
}

void RRefService::death_agreed(uint64_t incarnation) {
  tell([&](References& references, References::Actions& actions) { references.fence(incarnation, actions); });
}

void RRefService::lose_stranger(uint64_t incarnation) {
  tell([&](References& references, References::Actions& actions) { references.lose(incarnation, actions); });
  drop_fence_of(incarnation);
}

void RRefService::forget(uint64_t incarnation) {
  tell([&](References& references, References::Actions& actions) {
    references.lose(incarnation, actions);
    references.fence(incarnation, actions);
  });
  drop_fence_of(incarnation);
}

void RRefService::link_restored(const Worker& worker) {
  tell([&](References& references, References::Actions& actions) {
    references.link_restored(worker.incarnation, actions);
  });
}

void RRefService::settled(const Worker& worker) {
  tell([&](References& references, References::Actions&) {
    if (settlement_.settled(worker.incarnation)) references.settle(worker.incarnation);
  });
}

}  // namespace gradwire::rpc
