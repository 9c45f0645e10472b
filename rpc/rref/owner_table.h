#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::rpc {

// Who refers to the values that a worker owns: a pure state machine, events in, RRefs to free out. It knows
// no values.
//
// An entry appears with the first event that names its RRef: the creating request, a local handle, or a
// fork's add that came first on another connection. It goes, and its value may be freed, when it has neither
// forks nor local handles. Every event may come twice and late: a delete is remembered, so that an add that
// comes after it has no effect, until nothing that its holder sent earlier can come any more (settle). A fork
// is deleted by its holder alone. The forks of a lost holder stay until release(): what it passed on may not
// have been registered yet.
//
// Not thread-safe.
class OwnerTable {
 public:
  // RRefs that nobody refers to any more.
  using Freed = std::vector<Id>;
  struct Fork {
    Id rref;
    Id fork;
  };

  // `holder` (an incarnation) has the fork. Freed names the RRef at once when the fork was deleted before.
  // Without effect for a lost holder.
  Freed add_fork(const Id& rref, const Id& fork, uint64_t holder);
  // `settled`: nothing that the holder sent before this can come after it.
  Freed delete_fork(const Id& rref, const Id& fork, uint64_t holder, bool settled);
  // Nothing that the holder sent before the deletes that came so far can come any more.
  void settle(uint64_t holder) { deleted_.erase(holder); }
  // What was deleted cannot be added any more.
  void forget_delete(const Id& fork, uint64_t holder);
  // The holder is dead: it registers nothing any more.
  void lose_holder(uint64_t holder);
  // Drops the forks of all lost holders.
  Freed release_lost();

  // A handle in the owner's own process came into being or went.
  void add_local(const Id& rref);
  Freed delete_local(const Id& rref);

  // How many deletes are remembered for each holder; of more the oldest are forgotten.
  static constexpr std::size_t kMaxRemembered = 65536;

  bool contains(const Id& rref) const { return entries_.contains(rref); }
  bool has_fork(const Id& rref, const Id& fork) const;
  // Its delete is remembered.
  bool deleted(const Id& fork, uint64_t holder) const;
  bool lost(uint64_t holder) const { return lost_.contains(holder); }
  bool has_forks_of(uint64_t holder) const;
  // The forks of this holder that `allocator` named.
  std::vector<Fork> forks_of(uint64_t holder, uint64_t allocator) const;
  std::size_t size() const { return entries_.size(); }
  std::size_t remembered_deletes() const;
  // Lost holders whose forks have not been dropped.
  std::size_t unreleased() const { return unreleased_.size(); }
  bool remembers(uint64_t holder) const { return deleted_.contains(holder); }

  // Tables in the same state have the same hash: for those who explore states.
  template <class H>
  friend H AbslHashValue(H hash, const OwnerTable& table) {
    return H::combine(std::move(hash), table.entries_, table.deleted_, table.lost_, table.unreleased_);
  }

 private:
  struct Entry {
    // Fork -> the incarnation that holds it.
    absl::flat_hash_map<Id, uint64_t> forks;
    uint64_t local_handles = 0;
    template <class H>
    friend H AbslHashValue(H hash, const Entry& entry) {
      return H::combine(std::move(hash), entry.forks, entry.local_handles);
    }
  };
  Freed free_if_unreferenced(const Id& rref);

  absl::flat_hash_map<Id, Entry> entries_;
  // Holder -> forks it deleted whose add may yet come, by age: their counters ascend.
  absl::flat_hash_map<uint64_t, std::set<Id>> deleted_;
  GoneWorkers lost_;
  // Of the lost, those whose forks are still here.
  absl::flat_hash_set<uint64_t> unreleased_;
};

}  // namespace gradwire::rpc
