#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"

namespace gradwire::rpc {

// The forks that a worker holds of other workers' RRefs, and those it passed on: a pure state machine.
//
// A fork is unconfirmed until its owner is known to have it in its table (the answer to its add, to the
// creating request, or at once when the owner itself made it). It goes when its last handle has gone and it
// is confirmed: only then the delete leaves, so that no delete overtakes its add. A fork that was passed on
// to a third worker keeps a child: as long as one is there the fork stays, even without handles, so that the
// value lives until the owner has heard of the child. The children of a lost worker stay until
// release_lost(): what it passed on may not have been registered yet.
//
// Every event may come twice. Not thread-safe.
class HolderTable {
 public:
  struct Fork {
    Id rref;
    Id fork;
    uint64_t owner = 0;
    // Who passed it on; 0 when the owner did, or this worker asked for it itself.
    uint64_t sharer = 0;
  };
  // Forks to delete at their owners; the table has forgotten them.
  using Deletes = std::vector<Fork>;

  void add(const Fork& fork, bool confirmed);
  Deletes confirm(const Id& fork);
  // The last handle in this process went.
  Deletes release(const Id& fork);
  // The fork `parent` was passed on as `child` to `receiver` (an incarnation).
  void add_child(const Id& parent, const Id& child, uint64_t receiver);
  // `receiver` has told its owner of the child, or never got it. Ignored from anybody else.
  Deletes confirm_child(const Id& child, uint64_t receiver);
  // A worker is lost. Returns the unconfirmed forks of RRefs it owned; all of those go, and need no delete.
  std::vector<Fork> lose_worker(uint64_t incarnation);
  // The children of all lost workers are let go.
  Deletes release_lost();

  enum class Stage : uint8_t { kAbsent, kUnconfirmed, kUnconfirmedReleased, kConfirmed, kConfirmedReleased };
  // Released ones are here as long as something keeps them.
  Stage stage(const Id& fork) const;
  bool contains(const Id& fork) const { return forks_.contains(fork); }
  // Who passed on this fork, whose owner has not answered yet; 0 when nobody did.
  uint64_t sharer_of_unconfirmed(const Id& fork) const;
  // Of RRefs of this owner.
  std::vector<Id> forks_of(uint64_t owner) const;
  // The fork that was passed on as `child`; {} when nothing waits for that one.
  Id parent_of(const Id& child) const {
    auto found = children_.find(child);
    return found == children_.end() ? Id() : found->second.fork;
  }
  // To whom a child went; 0 when there is none of that name.
  uint64_t receiver_of(const Id& child) const;
  bool has_children_of(uint64_t receiver) const;
  struct Child {
    Id rref;
    Id child;
  };
  std::vector<Child> children_of(uint64_t receiver) const;
  // Unconfirmed forks that one of `sharers` passed on.
  bool has_unconfirmed_from(const absl::flat_hash_set<uint64_t>& sharers) const;
  std::size_t forks() const { return forks_.size(); }
  std::size_t children() const { return children_.size(); }
  // Those that a sharer waits for.
  std::size_t unconfirmed() const { return unconfirmed_.size(); }

  // Tables in the same state have the same hash: for those who explore states.
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
  Deletes delete_if_done(const Id& fork);

  absl::flat_hash_map<Id, State> forks_;
  absl::flat_hash_map<Id, Parent> children_;
  // Fork -> its sharer, where there is one: what a fence asks about.
  absl::flat_hash_map<Id, uint64_t> unconfirmed_;
  // Workers whose children are still here.
  absl::flat_hash_set<uint64_t> lost_;
};

}  // namespace gradwire::rpc
