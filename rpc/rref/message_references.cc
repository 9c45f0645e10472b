#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/rref/lazy_references.h"
#include "gradwire/rpc/rref/service.h"

// How RRefs travel in the payloads of calls.
namespace gradwire::rpc {

class RRefService::MessageReferences : public Encoder::References {
 public:
  MessageReferences(std::shared_ptr<RRefService> service, Worker receiver, bool is_answer)
      : service_(std::move(service)), receiver_(std::move(receiver)), is_answer_(is_answer) {}

  absl::StatusOr<uint32_t> add(const std::shared_ptr<RRefHandle>& handle, proto::Payload& payload) override {
    handles_.push_back(handle);
    return service_->add_reference(handle, receiver_, is_answer_, payload);
  }

 private:
  const std::shared_ptr<RRefService> service_;
  const Worker receiver_;
  const bool is_answer_;
  std::vector<std::shared_ptr<RRefHandle>> handles_;
};

absl::StatusOr<uint32_t> LazyReferences::add(const std::shared_ptr<RRefHandle>& handle,
                                             proto::Payload& payload) {
  if (made_ == nullptr) made_ = service_.encoder(*receiver_, is_answer_);
  return made_->add(handle, payload);
}

std::unique_ptr<Encoder::References> RRefService::encoder(const Worker& receiver, bool is_answer) {
  return std::make_unique<MessageReferences>(shared_from_this(), receiver, is_answer);
}

absl::StatusOr<uint32_t> RRefService::add_reference(const std::shared_ptr<RRefHandle>& handle,
                                                    const Worker& receiver, bool is_answer,
                                                    proto::Payload& payload) {
  if (handle == nullptr) return absl::InvalidArgumentError("an empty RRef cannot be sent");
  if (handle->service().get() != this) {
    return absl::FailedPreconditionError(
        "the RRef belongs to another agent, or to one that has been shut down");
  }
  proto::Reference& reference = *payload.add_references();
  to_proto(handle->rref(), *reference.mutable_rref());
  reference.set_owner(handle->owner().incarnation);
  reference.set_owner_id(handle->owner().id);
  reference.set_type(handle->type());
  const bool to_owner = receiver.incarnation == handle->owner().incarnation;
  if (handle->is_owner() && to_owner) {
    // To itself: the receiving end makes a local handle of its own before this one can go.
    if (!is_answer) return payload.references_size() - 1;
  } else if (to_owner && !is_answer) {
    return payload.references_size() - 1;
  }
  const Id child = agent_.next_id();
  to_proto(child, *reference.mutable_fork());
  MutexLock lock(mutex_);
  switch (references_.share(handle->rref(), handle->fork(), child, receiver.incarnation)) {
    case References::Shared::kRegistered:
      reference.set_registered(true);
      break;
    case References::Shared::kUnregistered:
      break;
    case References::Shared::kRefused:
      payload.mutable_references()->RemoveLast();
      return absl::UnavailableError(absl::StrCat("worker \"", receiver.name, "\", or the RRef's owner \"",
                                                 handle->owner().name, "\", is gone"));
  }
  return payload.references_size() - 1;
}

void RRefService::sent(const proto::Payload& payload, const Worker& receiver, bool closed) {
  if (payload.references_size() == 0) return;
  tell([&](References& references, References::Actions& actions) {
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (!child) continue;
      references.sent(child);
      if (closed) references.revoke(from_proto(reference.rref()), child, receiver.incarnation, actions);
    }
  });
}

void RRefService::undo(const proto::Payload& payload, const Worker& receiver) {
  if (payload.references_size() == 0) return;
  tell([&](References& references, References::Actions& actions) {
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (child) references.unshare(from_proto(reference.rref()), child, receiver.incarnation, actions);
    }
  });
}

absl::StatusOr<std::vector<std::shared_ptr<RRefHandle>>> RRefService::receive(const proto::Payload& payload,
                                                                              const Worker& from) {
  std::vector<std::shared_ptr<RRefHandle>> handles;
  if (payload.references_size() == 0) return handles;
  handles.reserve(payload.references_size());
  // One that cannot be must not keep the others from being taken, and given back: their sender waits for
  // that.
  absl::Status status;
  for (const proto::Reference& reference : payload.references()) {
    auto handle = receive_one(reference, from);
    if (handle.ok()) {
      handles.push_back(*std::move(handle));
    } else if (status.ok()) {
      status = handle.status();
    }
  }
  if (!status.ok()) return status;
  return handles;
}

absl::StatusOr<std::shared_ptr<RRefHandle>> RRefService::receive_one(const proto::Reference& reference,
                                                                     const Worker& from) {
  using Received = References::Received;
  const References::Reference named = {from_proto(reference.rref()), reference.owner(),
                                       from_proto(reference.fork()), reference.registered()};
  const bool here = named.owner == agent_.self().incarnation;
  absl::StatusOr<Worker> owner = here ? agent_.self() : agent_.find_worker_by_incarnation(named.owner);
  Promise<void> confirmed(agent_.executor());
  Received received;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the agent has been shut down");
    References::Actions actions;
    received = references_.receive(named, from.incarnation, actions);
    if (received == Received::kOwned) slots_.try_emplace(named.rref);
    if (received == Received::kUnconfirmed) unconfirmed_.emplace(named.child, confirmed);
    effects = take_locked(std::move(actions));
  }
  perform(std::move(effects), absl::OkStatus());
  switch (received) {
    case Received::kInvalid:
      return absl::InvalidArgumentError(
          "a reference that no worker can have sent: it has no id, or no fork for its "
          "receiver, or came before");
    case Received::kRefused:
      return absl::AbortedError(
          absl::StrCat("a reference from worker \"", from.name,
                       "\" came after the connection it was sent on had broken, or after that "
                       "worker's death"));
    case Received::kOwnerLost:
      return absl::UnavailableError(
          absl::StrCat("the owner of a reference is gone: ",
                       owner.ok() ? agent_.worker_status(*owner).message() : owner.status().message()));
    case Received::kConfirmed:
      confirmed.set_value();
      break;
    case Received::kOwned:
    case Received::kUnconfirmed:
      break;
  }
  // Who joined in between is known now.
  if (!owner.ok()) owner = agent_.find_worker_by_incarnation(named.owner);
  if (!owner.ok()) return with_context(owner.status(), "the owner of a reference");
  const bool owned = received == Received::kOwned;
  return std::make_shared<RRefHandle>(RRefHandle::Parts{
      weak_from_this(), named.rref, owned ? Id() : named.child, *owner, reference.type(),
      Future<void>(absl::OkStatus()), owned ? Future<void>(absl::OkStatus()) : confirmed.future()});
}

}  // namespace gradwire::rpc
