#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rpc/id.h"

namespace gradwire::rpc {

// The forks that a worker holds of other workers' RRefs, and those it passed on: a pure state machine.
//
// A fork is unconfirmed until its owner is known to have it in its table (the answer to ForkAdd, to the
// creating request, or at once when the owner itself made it). It goes when its last handle has gone and it
// is confirmed: only then the delete leaves, so that no delete overtakes its add. A fork that was passed on
// to a third worker keeps a child: as long as one is there the fork stays, even without handles, so that the
// value lives until the owner has heard of the child.
//
// Every event may come twice. Not thread-safe.
class HolderTable {
 public:
  struct Fork {
    Id rref;
    Id fork;
    uint64_t owner = 0;
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
  // The owner will never know the fork, since it is lost: nothing to delete there.
  void forget(const Id& fork);
  // A worker is lost: its RRefs' forks need no delete, and the children it was sent never confirm.
  Deletes lose_worker(uint64_t incarnation);

  bool contains(const Id& fork) const { return forks_.contains(fork); }
  bool confirmed(const Id& fork) const;
  std::size_t forks() const { return forks_.size(); }
  std::size_t children() const { return children_.size(); }

 private:
  struct State {
    Fork fork;
    bool confirmed = false;
    bool released = false;
    uint64_t children = 0;
  };
  struct Child {
    Id parent;
    uint64_t receiver = 0;
  };
  Deletes delete_if_done(const Id& fork);

  absl::flat_hash_map<Id, State> forks_;
  absl::flat_hash_map<Id, Child> children_;
};

}  // namespace gradwire::rpc
