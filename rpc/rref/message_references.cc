#include "gradwire/rpc/rref/message_references.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/rpc/limits/limit_refusals.h"
#include "gradwire/rpc/rref/service.h"

// Sends and receives RRefs in the payloads of calls.
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
  if (handle == nullptr) return absl::InvalidArgumentError("cannot send an empty RRef");
  if (handle->service().get() != this) {
    return absl::FailedPreconditionError(
        "cannot send an RRef that belongs to another agent, or to an agent that has been shut down");
  }
  proto::Reference& reference = *payload.add_references();
  to_proto(handle->rref(), *reference.mutable_rref());
  reference.set_owner(handle->owner().incarnation);
  reference.set_owner_id(handle->owner().id);
  reference.set_type(handle->type());
  const bool to_owner = receiver.incarnation == handle->owner().incarnation;
  // No fork is needed: the call keeps this handle until the owner has made a local handle.
  // The fork of the sender stays in the owner's table while the call waits for its answer, and the owner has
  // a handle by then. For an answer this does not hold: no message follows it, so its sender may delete the
  // fork before the owner has read the answer. Such a reference gets a child.
  if (to_owner && !is_answer) return payload.references_size() - 1;
  const Id child = agent_.next_id();
  to_proto(child, *reference.mutable_fork());
  // After shutdown the message will not be sent, and the call reports the reason.
  References::Shared shared =
      handle->is_owner() ? References::Shared::kRegistered : References::Shared::kRefused;
  // The child is entered before the message leaves. Otherwise the receiver's confirmation could come first.
  // A peer could fetch one reference again and again, and never give it back. Its references are counted in
  // the same critical section: answers are made by several threads.
  const bool limited = handle->is_owner() && limits(receiver);
  bool full = false;
  driver_->apply([&](Tables& tables, Actions&) {
    full = limited && tables.references.owner().count_forks_of(receiver.incarnation) >= limit_.references;
    if (full) return;
    shared = tables.references.share(handle->rref(), handle->fork(), child, receiver.incarnation);
  });
  if (full) {
    payload.mutable_references()->RemoveLast();
    return refuse(receiver, kHeld);
  }
  if (shared == References::Shared::kRefused) {
    payload.mutable_references()->RemoveLast();
    return absl::UnavailableError(absl::StrCat("cannot send an RRef to worker \"", receiver.name,
                                               "\": that worker, or the RRef's owner \"",
                                               handle->owner().name, "\", has left or was declared dead"));
  }
  reference.set_registered(shared == References::Shared::kRegistered);
  return payload.references_size() - 1;
}

// The connection may end at any time between the send and this event. Then link_restored() comes before or
// after this event, and takes the same lock:
//   1. If it comes after, it revokes the child, which is marked as sent by then.
//   2. If it came before, it has skipped the child as unsent. The connection was marked as closed before
//      that, so closed() returns true, and the child is revoked here.
// If closed() were called without the lock, link_restored() could come between its result and this event, and
// nothing would revoke the child.
void RRefService::sent(const proto::Payload& payload, const Worker& receiver,
                       absl::FunctionRef<bool()> closed) {
  if (payload.references_size() == 0) return;
  driver_->apply([&](Tables& tables, Actions& actions) {
    const bool lost = closed();
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (!child) continue;
      // From here on a broken connection affects the child.
      tables.references.sent(child);
      if (lost) tables.references.revoke(from_proto(reference.rref()), child, receiver.incarnation, actions);
    }
  });
}

void RRefService::undo(const proto::Payload& payload, const Worker& receiver) {
  if (payload.references_size() == 0) return;
  driver_->apply([&](Tables& tables, Actions& actions) {
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
  // A malformed reference must not prevent the others from being received and released: their sender waits
  // for that.
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
  // Looked up here for the error messages, and again below: the owner may join meanwhile.
  absl::StatusOr<Worker> owner = here ? agent_.self() : agent_.find_worker_by_incarnation(named.owner);
  Promise<void> confirmed(agent_.executor());
  Received received = Received::kRefused;
  const bool open = driver_->apply([&](Tables& tables, Actions& actions) {
    received = tables.references.receive(named, from.incarnation, actions);
    // The slot and the promise are added in the same critical section as the decision. Otherwise the owner's
    // answer could come before the promise that it completes.
    if (received == Received::kOwned) tables.values.try_emplace(named.rref);
    if (received == Received::kUnconfirmed) tables.unconfirmed.emplace(named.child, confirmed);
  });
  if (!open) return absl::FailedPreconditionError("the agent has been shut down");
  switch (received) {
    case Received::kInvalid:
      return absl::InvalidArgumentError(
          "malformed reference: it has no id, or no fork for its receiver, or was received before");
    case Received::kRefused:
      return absl::AbortedError(
          absl::StrCat("a reference from worker \"", from.name,
                       "\" arrived after its connection had broken, or after that worker was declared "
                       "dead"));
    case Received::kOwnerLost:
      return absl::UnavailableError(
          absl::StrCat("the owner of a received RRef is lost: ",
                       owner.ok() ? agent_.worker_status(*owner).message() : owner.status().message()));
    case Received::kTooMany:
      return refuse(from, kGiven);
    case Received::kConfirmed:
      confirmed.set_value();
      break;
    case Received::kOwned:
    case Received::kUnconfirmed:
      break;
  }
  // A worker that joined meanwhile is known now.
  if (!owner.ok()) owner = agent_.find_worker_by_incarnation(named.owner);
  if (!owner.ok()) return with_context(owner.status(), "cannot find the owner of a received RRef");
  const bool owned = received == Received::kOwned;
  return std::make_shared<RRefHandle>(RRefHandle::State{
      weak_from_this(), named.rref, owned ? Id() : named.child, *owner, reference.type(),
      Future<void>(absl::OkStatus()), owned ? Future<void>(absl::OkStatus()) : confirmed.future()});
}

}  // namespace gradwire::rpc
