#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/owner_table.h"
#include "gradwire/rpc/rref/reference_message.h"

namespace gradwire::rpc {

// The reference protocol of one worker: a pure state machine, events in, Actions out (docs/rref.md has the rules and why
// they are enough). It knows the values it owns and the forks it holds by name only, sends nothing and waits for
// nothing.
//
// No worker is named but by its incarnation. What happens because a worker died waits for a fence: every live worker has
// said that it takes nothing from the dead any more and that what it had taken is registered. So a reference that a
// worker passed on just before it died is not lost. A fence needs to ask everybody, so it begins when it is certain who
// everybody is (fence()).
//
// Not thread-safe.
class References {
 public:
  explicit References(uint64_t self) : self_(self) {}

  // What is to be done because of an event, in any order.
  struct Actions {
    // To be sent, and again until there is an answer; unacknowledged() has them too.
    std::vector<ReferenceMessage> send;
    // RRefs owned here that nobody refers to any more.
    std::vector<Id> freed;
    // Forks held here: the owner has them in its table; or never will, because it is lost, or has lost this worker.
    std::vector<Id> confirmed;
    std::vector<Id> refused;
    // Workers that somebody says are dead, and that are not known to be dead here.
    std::vector<uint64_t> accused;
    // Fences of others to be answered now (kDone): who asked, and the round.
    struct FenceAnswer {
      uint64_t asker;
      uint64_t round;
    };
    std::vector<FenceAnswer> fence_answers;
  };

  // ---- Members. Whoever is a member, and then lost, never becomes one again.

  void join(uint64_t member);
  // The worker is dead, or has left: nothing is taken from it any more.
  void lose(uint64_t member, Actions& actions);
  // The group's log has the worker's end, and has been read so far: everybody who joined before it is known here, and
  // whoever joins later knows that it is lost. Nothing else stands in for the log, or a fence would pass over members
  // that are not known here.
  void fence(uint64_t lost, Actions& actions);

  // ---- The owner.

  // A handle in this process came into being or went.
  void own(const Id& rref) { owner_.add_local(rref); }
  void release_local(const Id& rref, Actions& actions);
  // `holder` asks for `rref` to be made here, of which it has `fork`.
  void create(const Id& rref, const Id& fork, uint64_t holder, Actions& actions);
  // The fork that stood for a creation on oneself goes: its handle is a local one.
  // `made`: unless it was, its request may still be on its way, and must find that the fork has gone.
  void end_own_creation(const Id& rref, const Id& fork, bool made, Actions& actions);

  // ---- The holder.

  // A request to create `rref` at `owner`, of which `fork` is held here, is about to leave.
  void begin_creation(const Id& rref, const Id& fork, uint64_t owner);
  // It was answered; or it failed, and then whether the owner knows the fork is unknown.
  void end_creation(const Id& fork, Actions& actions);
  // The last handle in this process went.
  void release(const Id& fork, Actions& actions);

  // ---- References in messages.

  // How a reference travels to `receiver`, with the fork `child` for it.
  enum class Shared {
    // The owner, this worker, has registered the child.
    kRegistered,
    // The receiver must tell the owner, and then this worker, which keeps `parent` until then.
    kUnregistered,
    // The receiver is lost, or the owner is and the fork went with it.
    kRefused,
  };
  // `parent`: the fork held here; empty on the owner.
  Shared share(const Id& rref, const Id& parent, const Id& child, uint64_t receiver);
  // The message has left on a connection; or never will (unshare). Before that a broken connection means nothing to it.
  void sent(const Id& child) { unsent_.erase(child); }
  // The connection on which the message left may have ended before it got there: asks the receiver.
  void revoke(const Id& rref, const Id& child, uint64_t receiver, Actions& actions);
  // The message never left.
  void unshare(const Id& rref, const Id& child, uint64_t receiver, Actions& actions);

  enum class Received {
    // A local handle of a value owned here; own() has been done.
    kOwned,
    // A fork that the owner knows; or that waits for its answer (Actions::confirmed, refused).
    kConfirmed,
    kUnconfirmed,
    // The owner is lost, or unknown here.
    kOwnerLost,
    // The sender is lost, or said that it never sent this.
    kRefused,
    // Not what an honest worker sends.
    kInvalid,
  };
  struct Reference {
    Id rref;
    uint64_t owner = 0;
    // Empty when the owner gets back its own.
    Id child;
    bool registered = false;
  };
  Received receive(const Reference& reference, uint64_t from, Actions& actions);

  // ---- Messages.

  // `settled`: nothing that `from` sent earlier can come after this. No answer: it comes later, as a fence_answer.
  std::optional<ReferenceMessage::Answer> on_message(uint64_t from, const ReferenceMessage& message,
                                                     bool settled, Actions& actions);
  // Of a message that this worker sent. Ignored when it was answered before. kRefused: the group has given this worker
  // up, as it will find in the log.
  void on_answer(const ReferenceMessage& message, ReferenceMessage::Answer answer, Actions& actions);
  // What waits for an answer of `to`: to be sent again.
  std::vector<ReferenceMessage> unacknowledged(uint64_t to) const;

  // A connection to `peer` broke, and there is a new one: what was under way on the old one may be lost.
  void link_restored(uint64_t peer, Actions& actions);
  // Nothing that `peer` sent until now can come any more.
  void settle(uint64_t peer);

  // ---- To look at.

  const OwnerTable& owner() const { return owner_; }
  const HolderTable& holder() const { return holder_; }
  bool is_lost(uint64_t member) const { return lost_.contains(member); }
  // Messages that wait for an answer.
  std::size_t unacknowledged() const { return outbox_.size(); }
  // Something is kept because of the dead.
  bool fencing() const { return fence_due_; }
  // The others are being asked.
  bool fence_running() const { return fence_running_; }
  uint64_t fence_round() const { return round_; }
  // Questions of others that cannot be answered yet.
  std::size_t unanswered_fences() const { return asked_.size(); }
  // `sharer` says that it never sent this.
  bool is_revoked(uint64_t sharer, const Id& child) const {
    auto revoked = revoked_.find(sharer);
    return revoked != revoked_.end() && revoked->second.contains(child);
  }
  std::size_t revoked() const;
  // Of each sharer so many are remembered; of more the oldest are forgotten.
  static constexpr std::size_t kMaxRevoked = 65536;
  // Children whose messages have not left yet.
  std::size_t unsent() const { return unsent_.size(); }
  // Lost workers that are remembered, and those of them whose fence has not begun.
  std::size_t lost() const { return lost_.size(); }
  std::size_t unfenced() const { return unfenced_.size() + agreed_.size(); }
  // settle() would forget something.
  bool remembers(uint64_t peer) const { return owner_.remembers(peer) || revoked_.contains(peer); }

  // Machines in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const References& references) {
    const References& r = references;
    return H::combine(std::move(hash), r.owner_, r.holder_, r.members_, r.lost_, r.outbox_, r.revoked_,
                      r.fence_due_, r.fence_running_, r.unfenced_, r.agreed_, r.unsent_, r.round_,
                      r.waiting_for_, r.asked_);
  }

 private:
  using Key = std::tuple<ReferenceMessage::Kind, uint64_t, Id>;
  static Key key_of(const ReferenceMessage& message) { return {message.kind, message.to, message.fork}; }

  void post(ReferenceMessage message, Actions& actions);
  void confirm_to(uint64_t sharer, const Id& rref, const Id& fork, Actions& actions);
  void send_deletes(const HolderTable::Deletes& deletes, Actions& actions);
  static void append(const OwnerTable::Freed& freed, Actions& actions);
  void start_fence(Actions& actions);
  void end_fence(Actions& actions);
  // Ends this worker's fence and answers those of others, where that is possible by now.
  void check_fences(Actions& actions);
  void on_added(const ReferenceMessage& message, Actions& actions);

  uint64_t self_;
  OwnerTable owner_;
  HolderTable holder_;
  // Others.
  absl::flat_hash_set<uint64_t> members_;
  GoneWorkers lost_;

  // Children whose messages have not left yet.
  absl::flat_hash_set<Id> unsent_;
  absl::flat_hash_map<Key, ReferenceMessage> outbox_;
  // Sharer -> what it said that it never sent, by age: the counters of the ids ascend.
  absl::flat_hash_map<uint64_t, std::set<Id>> revoked_;

  // This worker's fence.
  bool fence_due_ = false;
  bool fence_running_ = false;
  // Lost, and it is not certain yet who must be asked.
  absl::flat_hash_set<uint64_t> unfenced_;
  // The opposite: certain before the loss was heard of, which another thread may be about to tell.
  absl::flat_hash_set<uint64_t> agreed_;
  uint64_t round_ = 0;
  absl::flat_hash_set<uint64_t> waiting_for_;

  // Fences of others that wait here: asker -> round and dead.
  struct Asked {
    uint64_t round = 0;
    std::vector<uint64_t> dead;
    template <class H>
    friend H AbslHashValue(H hash, const Asked& asked) {
      return H::combine(std::move(hash), asked.round, asked.dead);
    }
  };
  absl::flat_hash_map<uint64_t, Asked> asked_;
};

}  // namespace gradwire::rpc
