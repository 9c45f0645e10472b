#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "proto/rpc.pb.h"
#include "rpc/agent.h"
#include "rpc/lazy_references.h"
#include "rpc/rref/service.h"

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
  if (!handle->is_owner()) {
    holder_table_.add_child(handle->fork(), child, receiver.incarnation);
  } else {
    owner_table_.add_fork(handle->rref(), child, receiver.incarnation);
    reference.set_registered(true);
  }
  return payload.references_size() - 1;
}

void RRefService::undo(const proto::Payload& payload, const Worker& receiver) {
  if (payload.references_size() == 0) return;
  std::vector<Slot> freed;
  HolderTable::Deletes deletes;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    for (const proto::Reference& reference : payload.references()) {
      const Id child = from_proto(reference.fork());
      if (!child) continue;
      if (reference.registered()) {
        const Id rref = from_proto(reference.rref());
        for (Slot& slot : take_freed_locked(owner_table_.delete_fork(rref, child, receiver.incarnation))) {
          freed.push_back(std::move(slot));
        }
      } else {
        for (const HolderTable::Fork& fork : holder_table_.confirm_child(child, receiver.incarnation)) {
          deletes.push_back(fork);
        }
      }
    }
  }
  free_values(std::move(freed));
  send_deletes(deletes);
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
  const Id rref = from_proto(reference.rref());
  const Id child = from_proto(reference.fork());
  if (!rref) return absl::InvalidArgumentError("a reference without an id");
  if (reference.owner() == agent_.self().incarnation)
    return receive_owned(rref, child, reference.type(), from);
  if (!child || (reference.registered() && reference.owner() != from.incarnation)) {
    return absl::InvalidArgumentError("a reference without a fork for its receiver");
  }
  absl::StatusOr<Worker> owner = agent_.find_worker_by_incarnation(reference.owner());
  if (!owner.ok()) {
    confirm_to_sharer(from, rref, child);
    return with_context(owner.status(), "the owner of a reference");
  }
  const bool confirmed = reference.registered();
  Promise<void> promise(agent_.executor());
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the agent has been shut down");
    holder_table_.add({rref, child, owner->incarnation}, confirmed);
    if (!confirmed) unconfirmed_.emplace(child, promise);
  }
  if (confirmed) promise.set_value();
  auto handle =
      std::make_shared<RRefHandle>(RRefHandle::Parts{weak_from_this(), rref, child, *owner, reference.type(),
                                                     Future<void>(absl::OkStatus()), promise.future()});
  if (!confirmed) {
    proto::ForkAdd message;
    to_proto(rref, *message.mutable_rref());
    to_proto(child, *message.mutable_fork());
    send(*owner, kForkAdd, message.SerializeAsString(),
         [self = shared_from_this(), from, rref, child, promise](absl::Status status) {
           self->child_added(from, rref, child, promise, std::move(status));
         });
  }
  return handle;
}

void RRefService::child_added(const Worker& sharer, const Id& rref, const Id& child,
                              const Promise<void>& confirmed, absl::Status status) {
  HolderTable::Deletes deletes;
  {
    MutexLock lock(mutex_);
    unconfirmed_.erase(child);
    if (status.ok()) {
      deletes = holder_table_.confirm(child);
    } else {
      // It is repeated until the owner is lost, or this agent ends.
      holder_table_.forget(child);
    }
  }
  confirmed.set_result(std::move(status));
  send_deletes(deletes);
  // Also when the owner is lost: the sharer need not keep its fork for this child.
  confirm_to_sharer(sharer, rref, child);
}

std::shared_ptr<RRefHandle> RRefService::receive_owned(const Id& rref, const Id& child,
                                                       const std::string& type, const Worker& from) {
  std::vector<Slot> freed;
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      owner_table_.add_local(rref);
      slots_.try_emplace(rref);
      // A reference that this agent sent to itself as the owner was registered as a fork: the handle replaces
      // it.
      if (child && from.incarnation == agent_.self().incarnation) {
        freed = take_freed_locked(owner_table_.delete_fork(rref, child, from.incarnation));
      }
    }
  }
  free_values(std::move(freed));
  if (child && from.incarnation != agent_.self().incarnation) confirm_to_sharer(from, rref, child);
  return std::make_shared<RRefHandle>(RRefHandle::Parts{weak_from_this(), rref, Id(), agent_.self(), type,
                                                        Future<void>(absl::OkStatus()),
                                                        Future<void>(absl::OkStatus())});
}

void RRefService::confirm_to_sharer(const Worker& sharer, const Id& rref, const Id& child) {
  proto::ForkConfirmed message;
  to_proto(rref, *message.mutable_rref());
  to_proto(child, *message.mutable_fork());
  send(sharer, kForkConfirmed, message.SerializeAsString(), nullptr);
}

}  // namespace gradwire::rpc
