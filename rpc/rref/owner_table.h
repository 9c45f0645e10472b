#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::rpc {

// The references to the values that a worker owns: a pure state machine that takes events and returns the
// RRefs to free. It does not contain the values.
//
// 1. An entry is added by the first event that names its RRef: the creating request, a local handle, or the
// add
//    of a fork that arrived first on another connection.
// 2. An entry is removed, and its value may be freed, when it has neither forks nor local handles.
// 3. Each event may arrive twice, and late. The table remembers a delete, so that a later add of the same
// fork
//    has no effect, until no message that the holder sent earlier can arrive any more (settle).
// 4. Only its holder deletes a fork.
// 5. The forks of a lost holder stay until release_lost(): forks that it passed on may not be registered yet.
// 6. An event of one holder takes time for its own forks only, however many others have.
//
// Not thread-safe.
class OwnerTable {
 public:
  // RRefs without references.
  using Freed = std::vector<Id>;
  struct Fork {
    Id rref;
    Id fork;
    friend bool operator==(const Fork&, const Fork&) = default;
    template <class H>
    friend H AbslHashValue(H hash, const Fork& fork) {
      return H::combine(std::move(hash), fork.rref, fork.fork);
    }
  };

  // Records that `holder` (an incarnation) has the fork. Returns the RRef when the fork was deleted before
  // and nothing else refers to it. Has no effect for a lost holder.
  Freed add_fork(const Id& rref, const Id& fork, uint64_t holder);
  // `settled`: no message that the holder sent earlier can arrive after this one.
  Freed delete_fork(const Id& rref, const Id& fork, uint64_t holder, bool settled);
  // No message that the holder sent before its latest delete can arrive any more.
  void settle(uint64_t holder) { deleted_.erase(holder); }
  // The add of this deleted fork cannot arrive any more.
  void forget_delete(const Id& fork, uint64_t holder);
  // The holder is dead, and registers nothing any more.
  void lose_holder(uint64_t holder);
  // Drops the forks of all lost holders.
  Freed release_lost();

  // A handle in the owner's own process was created or destroyed.
  void add_local(const Id& rref);
  Freed delete_local(const Id& rref);

  // Maximum number of remembered deletes for each holder. Then the oldest are dropped.
  static constexpr std::size_t kMaxRemembered = 65536;

  bool contains(const Id& rref) const { return entries_.contains(rref); }
  bool has_fork(const Id& rref, const Id& fork) const;
  // Whether the delete of the fork is remembered.
  bool deleted(const Id& fork, uint64_t holder) const;
  bool lost(uint64_t holder) const { return lost_.contains(holder); }
  bool has_forks_of(uint64_t holder) const { return by_holder_.contains(holder); }
  // Number of forks of this holder, in constant time.
  std::size_t count_forks_of(uint64_t holder) const {
    auto forks = by_holder_.find(holder);
    return forks == by_holder_.end() ? 0 : forks->second.size();
  }
  // The forks of this holder whose ids were allocated by `allocator`.
  std::vector<Fork> forks_of(uint64_t holder, uint64_t allocator) const;
  std::size_t size() const { return entries_.size(); }
  std::size_t remembered_deletes() const;
  // Number of forks that were examined so far in order to find those of a holder.
  uint64_t examined() const { return examined_; }
  // Whether the index of the holders agrees with the entries: always. It examines the whole table.
  bool consistent() const;
  // Number of lost holders whose forks are still in the table.
  std::size_t unreleased() const { return unreleased_.size(); }
  // Calls visit(rref, holder, lost) for each fork and, with the holder 0, for each RRef without forks. Ends
  // when it returns false.
  template <class Visit>
  void each_holder(Visit visit) const {
    for (const auto& [rref, entry] : entries_) {
      if (entry.forks.empty() && !visit(rref, uint64_t{0}, false)) return;
      for (const auto& [fork, holder] : entry.forks) {
        if (!visit(rref, holder, lost(holder))) return;
      }
    }
  }
  bool remembers(uint64_t holder) const { return deleted_.contains(holder); }

  // Tables in the same state have the same hash. Used to explore states in tests. by_holder_ follows from the
  // entries.
  template <class H>
  friend H AbslHashValue(H hash, const OwnerTable& table) {
    return H::combine(std::move(hash), table.entries_, table.deleted_, table.lost_, table.unreleased_);
  }

 private:
  struct Entry {
    // Fork -> the incarnation that holds it.
    HashMap<Id, uint64_t> forks;
    uint64_t local_handles = 0;
    template <class H>
    friend H AbslHashValue(H hash, const Entry& entry) {
      return H::combine(std::move(hash), entry.forks, entry.local_handles);
    }
  };
  Freed free_if_unreferenced(const Id& rref);

  HashMap<Id, Entry> entries_;
  // The forks of each holder in entries_. A hostile holder may use one id for forks of several RRefs.
  HashMap<uint64_t, HashSet<Fork>> by_holder_;
  // Holder -> its deleted forks whose add may still arrive. Ordered by age, since the counters of ids ascend.
  HashMap<uint64_t, std::set<Id>> deleted_;
  GoneWorkers lost_;
  // The lost holders whose forks are still in the table.
  HashSet<uint64_t> unreleased_;
  mutable uint64_t examined_ = 0;
};

}  // namespace gradwire::rpc
