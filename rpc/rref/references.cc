#include "gradwire/rpc/rref/references.h"

#include <algorithm>
#include <utility>

namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

void References::append(const OwnerTable::Freed& freed, Actions& actions) {
  actions.freed.insert(actions.freed.end(), freed.begin(), freed.end());
}

void References::post(ReferenceMessage message, Actions& actions) {
  if (lost_.contains(message.to)) return;
  outbox_.insert_or_assign(key_of(message), message);
  actions.send.push_back(std::move(message));
}

void References::confirm_to(uint64_t sharer, const Id& rref, const Id& fork, Actions& actions) {
  post({.kind = Kind::kConfirm, .to = sharer, .rref = rref, .fork = fork}, actions);
}

void References::send_deletes(const HolderTable::Deletes& deletes, Actions& actions) {
  for (const HolderTable::Fork& fork : deletes) {
    post({.kind = Kind::kDelete, .to = fork.owner, .rref = fork.rref, .fork = fork.fork}, actions);
  }
}

void References::release_local(const Id& rref, Actions& actions) {
  append(owner_.delete_local(rref), actions);
}

void References::create(const Id& rref, const Id& fork, uint64_t holder, Actions& actions) {
  append(owner_.add_fork(rref, fork, holder), actions);
  // To oneself a request comes once.
  if (holder == self_) owner_.forget_delete(fork, self_);
}

void References::end_own_creation(const Id& rref, const Id& fork, bool made, Actions& actions) {
  append(owner_.delete_fork(rref, fork, self_, /*settled=*/made), actions);
}

void References::begin_creation(const Id& rref, const Id& fork, uint64_t owner) {
  if (!lost_.contains(owner)) holder_.add({rref, fork, owner, 0}, /*confirmed=*/false);
}

void References::end_creation(const Id& fork, Actions& actions) {
  if (!holder_.contains(fork)) return;
  actions.confirmed.push_back(fork);
  send_deletes(holder_.confirm(fork), actions);
}

void References::release(const Id& fork, Actions& actions) { send_deletes(holder_.release(fork), actions); }

References::Shared References::share(const Id& rref, const Id& parent, const Id& child, uint64_t receiver) {
  if (lost_.contains(receiver)) return Shared::kRefused;
  if (!parent) {
    owner_.add_fork(rref, child, receiver);
    unsent_.insert(child);
    return Shared::kRegistered;
  }
  if (!holder_.contains(parent)) return Shared::kRefused;
  holder_.add_child(parent, child, receiver);
  unsent_.insert(child);
  return Shared::kUnregistered;
}

void References::unshare(const Id& rref, const Id& child, uint64_t receiver, Actions& actions) {
  unsent_.erase(child);
  if (owner_.has_fork(rref, child)) {
    append(owner_.delete_fork(rref, child, receiver, /*settled=*/true), actions);
  } else {
    send_deletes(holder_.confirm_child(child, receiver), actions);
  }
}

References::Received References::receive(const Reference& reference, uint64_t from, Actions& actions) {
  if (lost_.contains(from)) return Received::kRefused;
  if (!reference.rref) return Received::kInvalid;
  if (auto revoked = revoked_.find(from);
      reference.child && revoked != revoked_.end() && revoked->second.contains(reference.child)) {
    return Received::kRefused;
  }
  if (reference.owner == self_) {
    owner_.add_local(reference.rref);
    if (reference.child && from == self_) {
      // Sent to oneself: the handle takes the place of the fork that was registered for it.
      append(owner_.delete_fork(reference.rref, reference.child, self_, /*settled=*/true), actions);
    } else if (reference.child) {
      confirm_to(from, reference.rref, reference.child, actions);
    }
    return Received::kOwned;
  }
  if (!reference.child || (reference.registered && reference.owner != from) ||
      holder_.contains(reference.child)) {
    return Received::kInvalid;
  }
  if (!members_.contains(reference.owner)) {
    if (reference.registered) {
      // Its owner is there, but not known here yet. It keeps the fork, which nobody will ever hold.
      post({.kind = Kind::kDelete, .to = from, .rref = reference.rref, .fork = reference.child}, actions);
    } else {
      // Nobody will register it: the sharer need not wait for that.
      confirm_to(from, reference.rref, reference.child, actions);
    }
    return Received::kOwnerLost;
  }
  const uint64_t sharer = reference.registered ? 0 : from;
  holder_.add({reference.rref, reference.child, reference.owner, sharer}, reference.registered);
  if (reference.registered) return Received::kConfirmed;
  post({.kind = Kind::kAdd, .to = reference.owner, .rref = reference.rref, .fork = reference.child}, actions);
  return Received::kUnconfirmed;
}

std::optional<Answer> References::on_message(uint64_t from, const ReferenceMessage& message, bool settled,
                                             Actions& actions) {
  if (lost_.contains(from)) return Answer::kRefused;
  switch (message.kind) {
    case Kind::kAdd:
      append(owner_.add_fork(message.rref, message.fork, from), actions);
      return Answer::kDone;
    case Kind::kDelete:
      append(owner_.delete_fork(message.rref, message.fork, from, settled), actions);
      return Answer::kDone;
    case Kind::kConfirm:
      send_deletes(holder_.confirm_child(message.fork, from), actions);
      return Answer::kDone;
    case Kind::kRevoke:
      if (holder_.contains(message.fork)) return Answer::kReceived;
      if (!settled) {
        std::set<Id>& revoked = revoked_[from];
        revoked.insert(message.fork);
        if (revoked.size() > kMaxRevoked) revoked.erase(revoked.begin());
      }
      return Answer::kNever;
    case Kind::kFence:
      break;
  }
  Asked& asked = asked_[from];
  if (message.round < asked.round) return Answer::kDone;  // A repetition that came late: nobody waits for it.
  asked = {message.round, message.dead};
  for (uint64_t dead : message.dead) {
    if (dead == self_) {
      asked_.erase(from);
      return Answer::kRefused;
    }
    if (!lost_.contains(dead)) actions.accused.push_back(dead);
  }
  check_fences(actions);
  return std::nullopt;
}

void References::on_answer(const ReferenceMessage& message, Answer answer, Actions& actions) {
  auto sent = outbox_.find(key_of(message));
  if (sent == outbox_.end() || sent->second.round != message.round) return;
  outbox_.erase(sent);
  if (answer == Answer::kRefused) {
    // The other has lost this worker: the group has given it up, which it may not know yet. What it holds is no
    // evidence any more, and it must say nothing that makes others let go of what they keep until they know, too: no
    // fork is confirmed to its sharer, no fence has been answered. Its users' handles fail.
    if (message.kind == Kind::kAdd && holder_.contains(message.fork)) actions.refused.push_back(message.fork);
    return;
  }
  switch (message.kind) {
    case Kind::kAdd:
      on_added(message, actions);
      break;
    case Kind::kRevoke:
      // It never got there, and never will: as if it had not been sent.
      if (answer == Answer::kNever) unshare(message.rref, message.fork, message.to, actions);
      break;
    case Kind::kFence:
      if (message.round != round_ || !waiting_for_.erase(message.to)) return;
      check_fences(actions);
      break;
    case Kind::kConfirm:
    case Kind::kDelete:
      break;
  }
}

void References::on_added(const ReferenceMessage& message, Actions& actions) {
  if (!holder_.contains(message.fork)) return;
  const uint64_t sharer = holder_.sharer_of_unconfirmed(message.fork);
  actions.confirmed.push_back(message.fork);
  send_deletes(holder_.confirm(message.fork), actions);
  if (sharer != 0) confirm_to(sharer, message.rref, message.fork, actions);
  check_fences(actions);
}

std::vector<ReferenceMessage> References::unacknowledged(uint64_t to) const {
  std::vector<ReferenceMessage> messages;
  for (const auto& [key, message] : outbox_) {
    if (message.to == to) messages.push_back(message);
  }
  return messages;
}

std::size_t References::revoked() const {
  std::size_t total = 0;
  for (const auto& [sharer, children] : revoked_) total += children.size();
  return total;
}

void References::revoke(const Id& rref, const Id& child, uint64_t receiver, Actions& actions) {
  // Already answered for, or taken back.
  const bool open = owner_.has_fork(rref, child) || holder_.receiver_of(child) == receiver;
  if (open) post({.kind = Kind::kRevoke, .to = receiver, .rref = rref, .fork = child}, actions);
}

void References::link_restored(uint64_t peer, Actions& actions) {
  if (lost_.contains(peer)) return;
  for (const HolderTable::Child& child : holder_.children_of(peer)) {
    if (!unsent_.contains(child.child)) revoke(child.rref, child.child, peer, actions);
  }
  // Those that the peer asked for itself it knows, and deletes.
  for (const OwnerTable::Fork& fork : owner_.forks_of(peer, self_)) {
    if (!unsent_.contains(fork.fork)) revoke(fork.rref, fork.fork, peer, actions);
  }
}

void References::settle(uint64_t peer) {
  owner_.settle(peer);
  revoked_.erase(peer);
}

}  // namespace gradwire::rpc
