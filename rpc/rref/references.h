#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "gradwire/codec/id.h"
#include "gradwire/rpc/rref/holder_table.h"
#include "gradwire/rpc/rref/owner_table.h"
#include "gradwire/rpc/rref/reference_actions.h"
#include "gradwire/rpc/rref/reference_fences.h"
#include "gradwire/rpc/rref/reference_message.h"
#include "gradwire/rpc/rref/reference_peers.h"
#include "gradwire/rpc/rref/revocations.h"

namespace gradwire::rpc {

// The reference protocol of one worker: a pure state machine, events in, Actions out (docs/rref.md has the
// rules and why they are enough). It knows the values it owns and the forks it holds by name only, sends
// nothing and waits for nothing.
//
// No worker is named but by its incarnation. What happens because a worker died waits for a fence: every live
// worker has said that it takes nothing from the dead any more and that what it had taken is registered. So a
// reference that a worker passed on just before it died is not lost. A fence needs to ask everybody, so it
// begins when it is certain who everybody is (fence()).
//
// Not thread-safe.
class References {
 public:
  using Actions = ReferenceActions;

  explicit References(uint64_t self) : peers_(self) {}

  // ---- Members. Whoever is a member, and then lost, never becomes one again.

  void join(uint64_t member) { peers_.join(member); }
  // The worker is dead, or has left: nothing is taken from it any more.
  void lose(uint64_t member, Actions& actions);
  // The group's log has the worker's end, and has been read so far: everybody who joined before it is known
  // here, and whoever joins later knows that it is lost. Nothing else stands in for the log, or a fence would
  // pass over members that are not known here.
  void fence(uint64_t lost, Actions& actions);

  // ---- The owner.

  // A handle in this process came into being; release() when it goes.
  void own(const Id& rref) { owner_.add_local(rref); }
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
  // The last handle of `fork` in this process went; or, with an empty fork, one on the owner.
  void release(const Id& rref, const Id& fork, Actions& actions);

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
  // The message has left on a connection; or never will (unshare). Before that a broken connection means
  // nothing to it.
  void sent(const Id& child) { revocations_.end(child); }
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

  // `settled`: nothing that `from` sent earlier can come after this. No answer: it comes later, as a
  // fence_answer.
  std::optional<ReferenceMessage::Answer> on_message(uint64_t from, const ReferenceMessage& message,
                                                     bool settled, Actions& actions);
  // Of a message that this worker sent. Ignored when it was answered before. kRefused: the group has given
  // this worker up, as it will find in the log.
  void on_answer(const ReferenceMessage& message, ReferenceMessage::Answer answer, Actions& actions);

  // A connection to `peer` broke, and there is a new one: what was under way on the old one may be lost.
  void link_restored(uint64_t peer, Actions& actions);
  // Nothing that `peer` sent until now can come any more.
  void settle(uint64_t peer);

  // ---- To look at.

  const OwnerTable& owner() const { return owner_; }
  const HolderTable& holder() const { return holder_; }
  const ReferencePeers& peers() const { return peers_; }
  const ReferenceFences& fences() const { return fences_; }
  const Revocations& revocations() const { return revocations_; }

  // Machines in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const References& references) {
    const References& r = references;
    return H::combine(std::move(hash), r.owner_, r.holder_, r.peers_, r.fences_, r.revocations_);
  }

 private:
  // Ends this worker's fence and answers those of others, where that is possible by now.
  void check_fences(Actions& actions);

  OwnerTable owner_;
  HolderTable holder_;
  ReferencePeers peers_;
  ReferenceFences fences_;
  Revocations revocations_;
};

}  // namespace gradwire::rpc
