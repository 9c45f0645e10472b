#include "gradwire/rpc/rref/message_references.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/rref/service.h"

// How RRefs travel in the payloads of calls.
namespace gradwire::rpc {
namespace {

using Actions = References::Actions;
using Tables = ReferenceDriver::Tables;

}  // namespace

absl::StatusOr<uint32_t> MessageReferences::add(const std::shared_ptr<RRefHandle>& handle,
                                                proto::Payload& payload) {
  handles_.push_back(handle);
  return service_.add_reference(handle, *receiver_, is_answer_, payload);
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
  // The call keeps this handle until the owner has made a local one of its own.
  if (to_owner && !is_answer) return payload.references_size() - 1;
  const Id child = agent_.next_id();
  to_proto(child, *reference.mutable_fork());
  // After shutdown the message will not leave: the call says why.
  References::Shared shared =
      handle->is_owner() ? References::Shared::kRegistered : References::Shared::kRefused;
  driver_->tell([&](Tables& tables, Actions&) {
    shared = tables.references.share(handle->rref(), handle->fork(), child, receiver.incarnation);
  });
  if (shared == References::Shared::kRefused) {
    payload.mutable_references()->RemoveLast();
    return absl::UnavailableError(absl::StrCat("worker \"", receiver.name, "\", or the RRef's owner \"",
                                               handle->owner().name, "\", is gone"));
  }
  reference.set_registered(shared == References::Shared::kRegistered);
  return payload.references_size() - 1;
}

void RRefService::sent(const proto::Payload& payload, const Worker& receiver, bool closed) {
  if (payload.references_size() == 0) return;
  driver_->tell([&](Tables& tables, Actions& actions) {
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (!child) continue;
      tables.references.sent(child);
      if (closed)
        tables.references.revoke(from_proto(reference.rref()), child, receiver.incarnation, actions);
    }
  });
}

void RRefService::undo(const proto::Payload& payload, const Worker& receiver) {
  if (payload.references_size() == 0) return;
  driver_->tell([&](Tables& tables, Actions& actions) {
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (child)
        tables.references.unshare(from_proto(reference.rref()), child, receiver.incarnation, actions);
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
  Received received = Received::kRefused;
  const bool open = driver_->tell([&](Tables& tables, Actions& actions) {
    received = tables.references.receive(named, from.incarnation, actions);
    if (received == Received::kOwned) tables.values.try_emplace(named.rref);
    if (received == Received::kUnconfirmed) tables.unconfirmed.emplace(named.child, confirmed);
  });
  if (!open) return absl::FailedPreconditionError("the agent has been shut down");
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
