#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/owner_table.h"
#include "gradwire/rpc/rref/reference_actions.h"
#include "gradwire/rpc/rref/reference_message.h"
#include "gradwire/rpc/rref/reference_peers.h"

namespace gradwire::rpc {

// How much one other worker can make this worker keep by the references that it sends. For example, the owner
// of what it sends is an accomplice that never answers.
struct ReferenceBounds {
  // Maximum number of forks that this worker holds because the other worker gave them.
  std::size_t forks = std::numeric_limits<std::size_t>::max();
  // Maximum number of messages to the other worker that wait for its answer. Above it, the references that it
  // sends, and those to its values, are declined.
  std::size_t messages = std::numeric_limits<std::size_t>::max();
};

// The revocation of references in messages (ReferenceMessage::Kind::kRevoke). The sharer does not revoke a
// reference whose message has not been sent yet. The receiver refuses a reference that was revoked before it
// arrived; it remembers the newest kMax revocations of each sharer. A pure state machine. Not thread-safe.
class Revocations {
 public:
  static constexpr std::size_t kMax = 65536;

  // ---- The sharer's side.

  // begin(): the message with the reference `child` is being made. end(): it was sent, or never will be.
  void begin(const Id& child) { unsent_.insert(child); }
  void end(const Id& child) { unsent_.erase(child); }
  bool is_unsent(const Id& child) const { return unsent_.contains(child); }
  std::size_t unsent() const { return unsent_.size(); }

  // ---- The receiver's side.

  void revoke(uint64_t sharer, const Id& child) {
    std::set<Id>& revoked = revoked_[sharer];
    revoked.insert(child);
    if (revoked.size() > kMax) revoked.erase(revoked.begin());
  }
  // No message that the sharer sent before can arrive any more.
  void forget(uint64_t sharer) { revoked_.erase(sharer); }
  bool is_revoked(uint64_t sharer, const Id& child) const {
    auto found = revoked_.find(sharer);
    return found != revoked_.end() && found->second.contains(child);
  }
  bool remembers(uint64_t sharer) const { return revoked_.contains(sharer); }
  std::size_t revoked() const {
    std::size_t total = 0;
    for (const auto& [sharer, children] : revoked_) total += children.size();
    return total;
  }

  // Tables in the same state have the same hash. Used to explore states in tests.
  template <class H>
  friend H AbslHashValue(H hash, const Revocations& revocations) {
    return H::combine(std::move(hash), revocations.unsent_, revocations.revoked_);
  }

 private:
  HashSet<Id> unsent_;
  // Sharer -> its revoked children. Ordered by age, since the counters of ids ascend.
  HashMap<uint64_t, std::set<Id>> revoked_;
};

// The fences of one worker (docs/rref.md, "Deaths"): its own fence, and the fences of others that it cannot
// answer yet. A pure state machine.
//
// 1. The worker's own fence is due when something is kept because of a lost worker.
// 2. It runs when the log has the ends of all lost workers. Then all members are asked.
// 3. Another loss starts it again.
// 4. It ends when all members that were asked have answered.
//
// Not thread-safe.
class ReferenceFences {
 public:
  // `member` was just lost. `keeps`: something is kept because of it.
  void lose(uint64_t member, bool keeps, ReferencePeers& peers, ReferenceActions& actions);
  // The log has the end of `member`. Returns true when this started the fence.
  bool agree(uint64_t member, ReferencePeers& peers, ReferenceActions& actions);
  // The receiver of `fence` has answered it. Returns true when this answer was awaited.
  bool take_answer(const ReferenceMessage& fence);

  // `asker` asks this worker. nullopt: the answer follows from end_ready().
  std::optional<ReferenceMessage::Answer> ask(uint64_t asker, const ReferenceMessage& fence,
                                              const ReferencePeers& peers, ReferenceActions& actions);
  // Ends this worker's fence, and answers the fences of others, if that is possible now. Returns true when
  // this worker's fence has ended: then what is kept because of lost workers may be dropped.
  bool end_ready(const HolderTable& holder, const GoneWorkers& lost, ReferenceActions& actions);

  // Whether something is kept because of lost workers.
  bool due() const { return due_; }
  // Whether the other members are being asked.
  bool running() const { return running_; }
  uint64_t round() const { return round_; }
  // Number of fences of others that cannot be answered yet.
  std::size_t unanswered() const { return asked_.size(); }
  // Number of lost workers whose fence has not started.
  std::size_t unfenced() const { return unfenced_.size() + agreed_.size(); }

  // Fences in the same state have the same hash. Used to explore states in tests.
  template <class H>
  friend H AbslHashValue(H hash, const ReferenceFences& fences) {
    const ReferenceFences& f = fences;
    return H::combine(std::move(hash), f.due_, f.running_, f.unfenced_, f.agreed_, f.round_, f.waiting_for_,
                      f.asked_);
  }

 private:
  void start(ReferencePeers& peers, ReferenceActions& actions);

  bool due_ = false;
  bool running_ = false;
  // Lost workers whose end has not been read in the log, so that the set of members is not certain.
  HashSet<uint64_t> unfenced_;
  // Workers whose end has been read in the log, but whose loss has not been reported by the other thread yet.
  HashSet<uint64_t> agreed_;
  uint64_t round_ = 0;
  HashSet<uint64_t> waiting_for_;

  // Fences of others that wait for this worker: asker -> round and dead workers.
  struct Asked {
    uint64_t round = 0;
    std::vector<uint64_t> dead;
    template <class H>
    friend H AbslHashValue(H hash, const Asked& asked) {
      return H::combine(std::move(hash), asked.round, asked.dead);
    }
  };
  HashMap<uint64_t, Asked> asked_;
};

// The reference protocol of one worker: a pure state machine that takes events and returns Actions.
// docs/rref.md has the rules and the argument that they suffice. The machine knows the values that this
// worker owns and the forks that it holds by their ids only. It sends nothing and waits for nothing.
//
// Workers are identified by their incarnation. After the death of a worker nothing is freed before a fence
// has ended: every live worker has confirmed that it accepts nothing from the dead worker any more, and that
// every reference it had accepted from it is registered with the owner. So a reference that a worker passed
// on just before it died is not lost. A fence has to ask all members, so it starts when the set of members is
// certain (fence()).
//
// Not thread-safe.
class References {
 public:
  using Actions = ReferenceActions;
  using Bounds = ReferenceBounds;

  explicit References(uint64_t self, const Bounds& bounds = {})
      : max_given_(bounds.forks), peers_(self, bounds.messages) {}

  // ---- Members. A member that was lost never becomes a member again.

  void join(uint64_t member) { peers_.join(member); }
  // The worker is dead or has left. Nothing is accepted from it any more.
  void lose(uint64_t member, Actions& actions);
  // This worker has read the end of the lost worker in the group's log. So it knows every member that joined
  // before, and every member that joins later knows that the worker is lost. Only the log may cause this
  // event: otherwise a fence would miss members that are not known here.
  void fence(uint64_t lost, Actions& actions);

  // ---- The owner.

  // A handle was created in this process. release() follows when it is destroyed.
  void own(const Id& rref) { owner_.add_local(rref); }
  // `holder` asks this worker to create `rref`, and holds `fork` of it.
  void create(const Id& rref, const Id& fork, uint64_t holder, Actions& actions);
  // Ends the fork of a creation that this worker requested from itself; its handle is a local one. `made`:
  // the value was created. Otherwise the request may still arrive, and must find that the fork has been
  // deleted.
  void end_own_creation(const Id& rref, const Id& fork, bool made, Actions& actions);

  // ---- The holder.

  // A request to create `rref` at `owner` is about to be sent. This worker holds `fork` of it.
  void begin_creation(const Id& rref, const Id& fork, uint64_t owner);
  // The request was answered, or it failed; after a failure it is unknown whether the owner knows the fork.
  void end_creation(const Id& fork, Actions& actions);
  // The last handle of `fork` in this process was destroyed. With an empty fork: one handle on the owner.
  void release(const Id& rref, const Id& fork, Actions& actions);

  // ---- References in messages.

  // The state in which a reference is sent to `receiver`, with the fork `child` for it.
  enum class Shared {
    // The owner, this worker, has registered the child.
    kRegistered,
    // The receiver must register the child with the owner, and then confirm it to this worker. This worker
    // keeps
    // `parent` until then.
    kUnregistered,
    // The receiver is lost, or the owner is lost and the fork was dropped with it.
    kRefused,
  };
  // `parent`: the fork that this worker holds; empty on the owner.
  Shared share(const Id& rref, const Id& parent, const Id& child, uint64_t receiver);
  // The message was sent on a connection. (unshare() follows instead when it is never sent.) Before this
  // event, a broken connection does not affect the child.
  void sent(const Id& child) { revocations_.end(child); }
  // The connection may have ended before the message arrived: asks the receiver whether it has the child.
  void revoke(const Id& rref, const Id& child, uint64_t receiver, Actions& actions);
  // The message was never sent.
  void unshare(const Id& rref, const Id& child, uint64_t receiver, Actions& actions);

  enum class Received {
    // This worker owns the value and has counted a local handle, as own() does.
    kOwned,
    // The owner knows the fork (kConfirmed), or its answer is awaited (Actions::confirmed, Actions::refused).
    kConfirmed,
    kUnconfirmed,
    // The owner is lost, or not known to this worker.
    kOwnerLost,
    // The sender is lost, or has revoked the reference.
    kRefused,
    // No correct worker sends such a reference.
    kInvalid,
    // The reference exceeds the Bounds.
    kTooMany,
  };
  struct Reference {
    Id rref;
    uint64_t owner = 0;
    // Empty when the reference returns to its owner.
    Id child;
    bool registered = false;
  };
  Received receive(const Reference& reference, uint64_t from, Actions& actions);

  // ---- Messages.

  // Handles a message. `settled`: no message that `from` sent earlier can arrive after this one. nullopt: the
  // answer follows later, in Actions::fence_answers.
  std::optional<ReferenceMessage::Answer> on_message(uint64_t from, const ReferenceMessage& message,
                                                     bool settled, Actions& actions);
  // Handles the answer to a message that this worker sent. Ignored when the message was answered before.
  // kRefused: the group has declared this worker lost, which it will read in the log.
  void on_answer(const ReferenceMessage& message, ReferenceMessage::Answer answer, Actions& actions);

  // A new connection to `peer` replaced a broken one. Messages on the old connection may be lost.
  void link_restored(uint64_t peer, Actions& actions);
  // No message that `peer` sent until now can arrive any more.
  void settle(uint64_t peer);

  // ---- Inspection.

  const OwnerTable& owner() const { return owner_; }
  const HolderTable& holder() const { return holder_; }
  const ReferencePeers& peers() const { return peers_; }
  const ReferenceFences& fences() const { return fences_; }
  const Revocations& revocations() const { return revocations_; }

  // Machines in the same state have the same hash. Used to explore states in tests.
  template <class H>
  friend H AbslHashValue(H hash, const References& references) {
    const References& r = references;
    return H::combine(std::move(hash), r.owner_, r.holder_, r.peers_, r.fences_, r.revocations_);
  }

 private:
  // Ends this worker's fence, and answers the fences of others, if that is possible now.
  void check_fences(Actions& actions);

  // Maximum number of forks that one other worker may give.
  std::size_t max_given_;
  OwnerTable owner_;
  HolderTable holder_;
  ReferencePeers peers_;
  ReferenceFences fences_;
  Revocations revocations_;
};

}  // namespace gradwire::rpc
