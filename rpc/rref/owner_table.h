#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "rpc/id.h"

namespace gradwire::rpc {

// Who refers to the values that a worker owns: a pure state machine, events in, RRefs to free out. It knows
// no values.
//
// An entry appears with the first event that names its RRef: the creating request, a local handle, or a
// fork's add that came first on another connection. It goes, and its value may be freed, when it has neither
// forks nor local handles. Every event may come twice. A delete that overtakes its fork's add is remembered
// until the add comes or the holder is lost; of very many such the oldest are forgotten. A fork is deleted by
// its holder alone. After a holder was lost its late adds are ignored.
//
// Not thread-safe.
class OwnerTable {
 public:
  // RRefs that nobody refers to any more.
  using Freed = std::vector<Id>;

  // `holder` (an incarnation) has the fork. Freed names the RRef at once when the fork was deleted before.
  Freed add_fork(const Id& rref, const Id& fork, uint64_t holder);
  Freed delete_fork(const Id& rref, const Id& fork, uint64_t holder);
  // Drops all forks of a dead holder and all it had deleted early.
  Freed lose_holder(uint64_t holder);

  // A handle in the owner's own process came into being or went.
  void add_local(const Id& rref);
  Freed delete_local(const Id& rref);

  // How many early deletes are remembered for each holder: an honest one has no more creating requests under
  // way.
  static constexpr std::size_t kMaxEarlyDeletes = 65536;

  bool contains(const Id& rref) const { return entries_.contains(rref); }
  bool has_fork(const Id& rref, const Id& fork) const;
  std::size_t size() const { return entries_.size(); }
  std::size_t early_deletes() const;

 private:
  struct Entry {
    // Fork -> the incarnation that holds it.
    absl::flat_hash_map<Id, uint64_t> forks;
    uint64_t local_handles = 0;
  };
  Freed free_if_unreferenced(const Id& rref);

  absl::flat_hash_map<Id, Entry> entries_;
  // Holder -> forks it deleted before they were added, by age: their counters ascend.
  absl::flat_hash_map<uint64_t, std::set<Id>> early_deletes_;
  absl::flat_hash_set<uint64_t> lost_;
};

}  // namespace gradwire::rpc
