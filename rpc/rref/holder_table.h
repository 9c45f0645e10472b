#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/limits/worker_counts.h"

namespace gradwire::rpc {

// The forks that a worker holds of other workers' RRefs, and the children that it passed on: a pure state
// machine.
//
// 1. A fork is unconfirmed until the owner is known to have it in its table: by the answer to its add or to
// the
//    creating request, or at once when the owner itself made the fork.
// 2. The delete of a fork is sent when its last handle was destroyed, it is confirmed, and it has no child.
// So a
//    delete never overtakes its add.
// 3. A fork that is passed on to a third worker has a child. While a child exists the fork stays, even
// without
//    handles, so that the value lives until the owner knows the child.
// 4. The children of a lost worker stay until release_lost(): forks that it passed on may not be registered
// yet.
// 5. An event of one worker takes time for its own forks and children only, however many others have.
//
// Each event may arrive twice. Not thread-safe.
class HolderTable {
 public:
  struct Fork {
    Id rref;
    Id fork;
    uint64_t owner = 0;
    // The worker whose message brought the fork, which may be the owner; 0 when this worker created the RRef.
    uint64_t giver = 0;
  };
  // Forks to delete at their owners. They are no longer in the table.
  using Deletes = std::vector<Fork>;

  void add(const Fork& fork, bool confirmed);
  Deletes confirm(const Id& fork);
  // The last handle in this process was destroyed.
  Deletes release(const Id& fork);
  // The fork `parent` was passed on as `child` to `receiver` (an incarnation).
  void add_child(const Id& parent, const Id& child, uint64_t receiver);
  // `receiver` has registered the child with the owner, or never received it. Ignored from another worker.
  Deletes confirm_child(const Id& child, uint64_t receiver);
  // A worker is lost. Removes the forks of RRefs that it owned, which need no delete, and returns the
  // unconfirmed ones.
  std::vector<Fork> lose_worker(uint64_t incarnation);
  // Removes the children of all lost workers.
  Deletes release_lost();

  enum class Stage : uint8_t { kAbsent, kUnconfirmed, kUnconfirmedReleased, kConfirmed, kConfirmedReleased };
  // The stage of a fork. A released fork stays while a child or a missing confirmation keeps it.
  Stage stage(const Id& fork) const;
  bool contains(const Id& fork) const { return forks_.contains(fork); }
  // The worker that gave this unconfirmed fork, and waits for its confirmation; 0 without one.
  uint64_t sharer_of_unconfirmed(const Id& fork) const;
  // The forks of this owner's RRefs.
  std::vector<Id> forks_of(uint64_t owner) const;
  // The fork that was passed on as `child`; {} for an unknown child.
  Id parent_of(const Id& child) const {
    auto found = children_.find(child);
    return found == children_.end() ? Id() : found->second.fork;
  }
  // The worker that a child was sent to; 0 for an unknown child.
  uint64_t receiver_of(const Id& child) const;
  bool has_children_of(uint64_t receiver) const { return by_receiver_.contains(receiver); }
  struct Child {
    Id rref;
    Id child;
  };
  std::vector<Child> children_of(uint64_t receiver) const;
  // Whether an unconfirmed fork was passed on by one of `sharers`. Takes time for the workers that wait for a
  // confirmation, not for their forks.
  bool has_unconfirmed_from(const HashSet<uint64_t>& sharers) const;
  std::size_t forks() const { return forks_.size(); }
  // Number of forks in the table that this worker gave, in constant time.
  std::size_t count_given_by(uint64_t giver) const { return given_.count(giver); }
  // Calls visit(owner) for each fork. Ends when it returns false.
  template <class Visit>
  void each_owner(Visit visit) const {
    for (const auto& [fork, state] : forks_) {
      if (!visit(state.fork.owner)) return;
    }
  }
  std::size_t children() const { return children_.size(); }
  // Number of unconfirmed forks whose sharer waits for the confirmation.
  std::size_t unconfirmed() const { return unconfirmed_.size(); }
  // Number of forks and children that were examined so far in order to find those of a worker.
  uint64_t examined() const { return examined_; }
  // Whether the indexes agree with the tables: always. It examines all of them.
  bool consistent() const;

  // Tables in the same state have the same hash. Used to explore states in tests. The indexes follow from the
  // tables.
  template <class H>
  friend H AbslHashValue(H hash, const HolderTable& table) {
    return H::combine(std::move(hash), table.forks_, table.children_, table.unconfirmed_, table.lost_);
  }

 private:
  struct State {
    Fork fork;
    bool confirmed = false;
    bool released = false;
    uint64_t children = 0;
    template <class H>
    friend H AbslHashValue(H hash, const State& state) {
      return H::combine(std::move(hash), state.confirmed, state.released, state.children);
    }
  };
  struct Parent {
    Id fork;
    Id rref;
    uint64_t receiver = 0;
    template <class H>
    friend H AbslHashValue(H hash, const Parent& parent) {
      return H::combine(std::move(hash), parent.fork, parent.receiver);
    }
  };
  // A worker or a fork, and the forks or children that belong to it. An entry is never empty.
  template <class Key>
  using Index = HashMap<Key, HashSet<Id>>;
  using Forks = HashMap<Id, State>;
  using Children = HashMap<Id, Parent>;

  Deletes delete_if_done(const Id& fork);
  // Each removes an entry from the table and from its indexes.
  void remove_fork(Forks::iterator fork);
  void remove_child(Children::iterator child);
  void remove_unconfirmed(const Id& fork);

  Forks forks_;
  // The forks in forks_ that each giver gave, and those of each owner.
  WorkerCounts given_;
  Index<uint64_t> by_owner_;
  Children children_;
  // The children in children_ of each receiver, and those of each fork.
  Index<uint64_t> by_receiver_;
  Index<Id> by_parent_;
  // Unconfirmed fork -> its sharer, if any. A fence waits for these.
  HashMap<Id, uint64_t> unconfirmed_;
  // The forks in unconfirmed_ of each sharer.
  WorkerCounts unconfirmed_of_;
  // Lost workers whose children are still in the table.
  HashSet<uint64_t> lost_;
  mutable uint64_t examined_ = 0;
};

}  // namespace gradwire::rpc
