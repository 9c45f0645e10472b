#include "gradwire/rpc/rref/references.h"

#include <algorithm>

namespace gradwire::rpc {

using Kind = ReferenceMessage::Kind;
using Answer = ReferenceMessage::Answer;

// Two threads report the end of a worker: lose() comes from its connection or its host, agree() from the
// reader of the log. They may come in either order, and a fence starts only when both have come for every
// lost worker: agreed_ and unfenced_ hold the first of the two.
void ReferenceFences::lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions) {
  // The lost worker waits for no answer any more.
  asked_.erase(member);
  if (agreed_.erase(member) == 0) unfenced_.insert(member);
  if (keeps || due_) {
    // Start again even if nothing is kept because of this worker: it may have held and passed on what is kept
    // because of another lost worker. So all members are asked about all lost workers.
    due_ = true;
    running_ = false;
    if (unfenced_.empty()) start(peers, actions);
  }
}

bool ReferenceFences::agree(uint64_t member, ReferencePeers& peers, ReferenceActions& actions) {
  if (member != peers.self() && !peers.is_lost(member)) {
    agreed_.insert(member);
    return false;
  }
  if (unfenced_.erase(member) == 0 || !due_ || !unfenced_.empty()) return false;
  start(peers, actions);
  return true;
}

void ReferenceFences::start(ReferencePeers& peers, ReferenceActions& actions) {
  // A new number: an answer to an earlier round does not count for this one, which names more lost workers.
  ++round_;
  running_ = true;
  waiting_for_ = peers.members();
  // Sorted, so that the same history gives the same messages.
  const std::vector<uint64_t> dead = peers.lost().sorted();
  for (uint64_t member : peers.members()) {
    peers.post({.kind = Kind::kFence, .to = member, .round = round_, .dead = dead}, actions);
  }
}

bool ReferenceFences::take_answer(const ReferenceMessage& fence) {
  return fence.round == round_ && waiting_for_.erase(fence.to) > 0;
}

std::optional<Answer> ReferenceFences::ask(uint64_t asker, const ReferenceMessage& fence,
                                           const ReferencePeers& peers, ReferenceActions& actions) {
  Asked& asked = asked_[asker];
  if (fence.round < asked.round) return Answer::kDone;  // A late repetition, whose answer is not awaited.
  asked = {fence.round, fence.dead};
  for (uint64_t dead : fence.dead) {
    // The group has lost this worker. Its answer must not let others drop anything.
    if (dead == peers.self()) {
      asked_.erase(asker);
      return Answer::kRefused;
    }
    if (!peers.is_lost(dead)) actions.accused.push_back(dead);
  }
  return std::nullopt;
}

bool ReferenceFences::end_ready(const HolderTable& holder, const GoneWorkers& lost,
                                ReferenceActions& actions) {
  if (!running_ && asked_.empty()) return false;
  // This worker may also have accepted a fork from a lost worker that the owner does not know yet.
  // Until the owner has such a fork in its table, only what others keep because of the lost worker may keep
  // the value alive.
  if (holder.has_unconfirmed_from(lost.all())) return false;
  const bool ended = running_ && waiting_for_.empty();
  if (ended) due_ = running_ = false;
  // Answer the fences whose workers are all lost here. The others wait until the accusation has made this
  // worker lose them.
  for (auto asked = asked_.begin(); asked != asked_.end();) {
    const std::vector<uint64_t>& dead = asked->second.dead;
    if (std::all_of(dead.begin(), dead.end(), [&lost](uint64_t worker) { return lost.contains(worker); })) {
      actions.fence_answers.push_back({asked->first, asked->second.round});
      asked_.erase(asked++);
    } else {
      ++asked;
    }
  }
  return ended;
}

namespace {

// This worker does not hold the reference that `from` has sent, so nobody must keep anything for it.
void decline(const References::Reference& reference, uint64_t from, ReferencePeers& peers,
             ReferenceActions& actions) {
  // One message more would be kept as well. Such a worker takes the reference back when its connection ends
  // (References::revoke).
  if (!peers.answers(from)) return;
  if (reference.registered) {
    // The sender is the owner, and keeps a fork that nobody will hold.
    peers.post({.kind = Kind::kDelete, .to = from, .rref = reference.rref, .fork = reference.child}, actions);
  } else {
    // This worker will not register the child, so the sharer must not wait for it.
    peers.post_confirm(from, reference.rref, reference.child, actions);
  }
}

}  // namespace

// The order of the steps matters: what is kept because of the lost worker must be found before the tables
// forget it, and the tables must have changed before a fence can end.
void References::lose(uint64_t member, Actions& actions) {
  if (!peers_.lose(member)) return;
  revocations_.forget(member);
  const bool keeps = owner_.has_forks_of(member) || holder_.has_children_of(member);
  owner_.lose_holder(member);
  for (const HolderTable::Fork& fork : holder_.lose_worker(member)) actions.refused.push_back(fork.fork);
  fences_.lose(member, keeps, peers_, actions);
  check_fences(actions);
}

void References::fence(uint64_t lost, Actions& actions) {
  if (fences_.agree(lost, peers_, actions)) check_fences(actions);
}

void References::check_fences(Actions& actions) {
  if (!fences_.end_ready(holder_, peers_.lost(), actions)) return;
  actions.free(owner_.release_lost());
  peers_.post_deletes(holder_.release_lost(), actions);
}

void References::create(const Id& rref, const Id& fork, uint64_t holder, Actions& actions) {
  actions.free(owner_.add_fork(rref, fork, holder));
  // A request to this worker itself arrives once, so its delete need not be remembered.
  if (holder == peers_.self()) owner_.forget_delete(fork, peers_.self());
}

void References::end_own_creation(const Id& rref, const Id& fork, bool made, Actions& actions) {
  actions.free(owner_.delete_fork(rref, fork, peers_.self(), /*settled=*/made));
}

void References::begin_creation(const Id& rref, const Id& fork, uint64_t owner) {
  if (!peers_.is_lost(owner)) holder_.add({rref, fork, owner, 0}, /*confirmed=*/false);
}

// The fork counts as confirmed even if the creation failed. Its delete may then arrive before the request, or
// without it. The owner remembers the delete, so both orders end with no fork.
void References::end_creation(const Id& fork, Actions& actions) {
  if (!holder_.contains(fork)) return;
  actions.confirmed.push_back(fork);
  peers_.post_deletes(holder_.confirm(fork), actions);
}

void References::release(const Id& rref, const Id& fork, Actions& actions) {
  if (fork) {
    peers_.post_deletes(holder_.release(fork), actions);
  } else {
    actions.free(owner_.delete_local(rref));
  }
}

References::Shared References::share(const Id& rref, const Id& parent, const Id& child, uint64_t receiver) {
  if (peers_.is_lost(receiver)) return Shared::kRefused;
  if (!parent) {
    // This worker is the owner. The child enters its own table, so the receiver need not register it.
    owner_.add_fork(rref, child, receiver);
    revocations_.begin(child);
    return Shared::kRegistered;
  }
  // The owner was lost, and its forks went with it.
  if (!holder_.contains(parent)) return Shared::kRefused;
  holder_.add_child(parent, child, receiver);
  revocations_.begin(child);
  return Shared::kUnregistered;
}

void References::unshare(const Id& rref, const Id& child, uint64_t receiver, Actions& actions) {
  revocations_.end(child);
  // This worker owns the value (share() registered the child), or it holds the parent.
  if (owner_.has_fork(rref, child)) {
    actions.free(owner_.delete_fork(rref, child, receiver, /*settled=*/true));
  } else {
    peers_.post_deletes(holder_.confirm_child(child, receiver), actions);
  }
}

References::Received References::receive(const Reference& reference, uint64_t from, Actions& actions) {
  if (peers_.is_lost(from)) return Received::kRefused;
  if (!reference.rref) return Received::kInvalid;
  if (reference.child && revocations_.is_revoked(from, reference.child)) return Received::kRefused;
  if (reference.owner == peers_.self()) {
    const bool confirms = reference.child && from != peers_.self();
    if (confirms && !peers_.answers(from)) return Received::kTooMany;
    // The value comes home. The local handle is counted before the child is confirmed, so the value has a
    // reference at every moment.
    owner_.add_local(reference.rref);
    if (confirms) {
      peers_.post_confirm(from, reference.rref, reference.child, actions);
    } else if (reference.child) {
      // This worker sent the reference to itself: the handle replaces the fork that was registered for it.
      actions.free(owner_.delete_fork(reference.rref, reference.child, peers_.self(), /*settled=*/true));
    }
    return Received::kOwned;
  }
  // Only the owner can have registered the child. A child that is here already was sent twice.
  if (!reference.child || (reference.registered && reference.owner != from) ||
      holder_.contains(reference.child)) {
    return Received::kInvalid;
  }
  const bool known = peers_.members().contains(reference.owner);
  // The messages to a worker that does not answer are kept until it is lost. So they are counted as well as
  // the forks: a fork can be gone while its messages are not. A worker does not limit itself.
  const bool fits = from == peers_.self() || (holder_.count_given_by(from) < max_given_ &&
                                              peers_.answers(from) && peers_.answers(reference.owner));
  if (!known || !fits) {
    decline(reference, from, peers_, actions);
    return known ? Received::kTooMany : Received::kOwnerLost;
  }
  // The callee gets its handle without waiting. In the background the owner is asked to register the fork.
  holder_.add({reference.rref, reference.child, reference.owner, from}, reference.registered);
  if (reference.registered) return Received::kConfirmed;
  peers_.post({.kind = Kind::kAdd, .to = reference.owner, .rref = reference.rref, .fork = reference.child},
              actions);
  return Received::kUnconfirmed;
}

std::optional<Answer> References::on_message(uint64_t from, const ReferenceMessage& message, bool settled,
                                             Actions& actions) {
  if (peers_.is_lost(from)) return Answer::kRefused;
  switch (message.kind) {
    case Kind::kAdd:
      actions.free(owner_.add_fork(message.rref, message.fork, from));
      return Answer::kDone;
    case Kind::kDelete:
      actions.free(owner_.delete_fork(message.rref, message.fork, from, settled));
      return Answer::kDone;
    case Kind::kConfirm:
      peers_.post_deletes(holder_.confirm_child(message.fork, from), actions);
      return Answer::kDone;
    case Kind::kRevoke:
      // The sharer asks because a connection broke. If the fork is not here, it may still arrive on a
      // connection whose end has not been read. Refuse it then. If everything has settled, it cannot arrive.
      if (holder_.contains(message.fork)) return Answer::kReceived;
      if (!settled) revocations_.revoke(from, message.fork);
      return Answer::kNever;
    case Kind::kFence:
      break;
  }
  const std::optional<Answer> answer = fences_.ask(from, message, peers_, actions);
  if (!answer) check_fences(actions);
  return answer;
}

void References::on_answer(const ReferenceMessage& message, Answer answer, Actions& actions) {
  if (!peers_.take_answered(message)) return;
  if (answer == Answer::kRefused) {
    // The receiver has declared this worker lost; this worker may not have read that in the log yet. Its
    // forks may be gone. So it must not send anything that lets others drop what they keep before they know
    // of its loss: it confirms no fork to its sharer, and takes no fence as answered. Handles of the user
    // fail.
    if (message.kind == Kind::kAdd && holder_.contains(message.fork)) actions.refused.push_back(message.fork);
    return;
  }
  switch (message.kind) {
    case Kind::kAdd: {
      if (!holder_.contains(message.fork)) return;
      // Read before confirm(), which forgets it.
      const uint64_t sharer = holder_.sharer_of_unconfirmed(message.fork);
      // A denied fork ends as a confirmed one does, except that its handles fail. The owner ignores its
      // delete.
      (answer == Answer::kDenied ? actions.refused : actions.confirmed).push_back(message.fork);
      peers_.post_deletes(holder_.confirm(message.fork), actions);
      if (sharer != 0) peers_.post_confirm(sharer, message.rref, message.fork, actions);
      check_fences(actions);
      break;
    }
    case Kind::kRevoke:
      // The child never arrived, and never will: undo it as if it had not been sent.
      if (answer == Answer::kNever) unshare(message.rref, message.fork, message.to, actions);
      break;
    case Kind::kFence:
      if (fences_.take_answer(message)) check_fences(actions);
      break;
    case Kind::kConfirm:
    case Kind::kDelete:
      break;
  }
}

void References::revoke(const Id& rref, const Id& child, uint64_t receiver, Actions& actions) {
  // Otherwise the child was confirmed, or taken back.
  const bool open = owner_.has_fork(rref, child) || holder_.receiver_of(child) == receiver;
  if (open) peers_.post({.kind = Kind::kRevoke, .to = receiver, .rref = rref, .fork = child}, actions);
}

void References::link_restored(uint64_t peer, Actions& actions) {
  if (peers_.is_lost(peer)) return;
  for (const HolderTable::Child& child : holder_.children_of(peer)) {
    // A message that has not left yet will be sent on the new connection. Asked now, the receiver would
    // answer that it never received the child, and then receive it.
    if (!revocations_.is_unsent(child.child)) revoke(child.rref, child.child, peer, actions);
  }
  // Only forks that this worker allocated: the peer knows the forks that it asked for, and deletes them
  // itself.
  for (const OwnerTable::Fork& fork : owner_.forks_of(peer, peers_.self())) {
    if (!revocations_.is_unsent(fork.fork)) revoke(fork.rref, fork.fork, peer, actions);
  }
}

void References::settle(uint64_t peer) {
  owner_.settle(peer);
  revocations_.forget(peer);
}

}  // namespace gradwire::rpc
