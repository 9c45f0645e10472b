#include "gradwire/rpc/rref/owner_table.h"

#include "gradwire/rpc/rref/index.h"

// Messages about one fork may come over several connections in any order, and twice. A fork id is never used
// again, so a delete that was seen once is final: deleted_ remembers it as long as an older message may still
// come.
namespace gradwire::rpc {

OwnerTable::Freed OwnerTable::add_fork(const Id& rref, const Id& fork, uint64_t holder) {
  // A late message of a lost holder has no effect. In particular it must not add an entry.
  if (lost_.contains(holder)) return {};
  Entry& entry = entries_[rref];
  // The entry may be new, and the fork deleted before. Then free_if_unreferenced() removes the entry at once.
  if (!deleted(fork, holder) && entry.forks.try_emplace(fork, holder).second)
    by_holder_[holder].insert({rref, fork});
  return free_if_unreferenced(rref);
}

OwnerTable::Freed OwnerTable::delete_fork(const Id& rref, const Id& fork, uint64_t holder, bool settled) {
  if (lost_.contains(holder)) return {};
  auto entry = entries_.find(rref);
  auto found =
      entry == entries_.end() ? decltype(entry->second.forks.find(fork))() : entry->second.forks.find(fork);
  const bool known = entry != entries_.end() && found != entry->second.forks.end();
  // Only its holder deletes a fork. No correct worker sends a delete for the fork of another one.
  if (known && found->second != holder) return {};
  if (!settled) {
    // The add may still arrive. A hostile holder can send any number of deletes, so the oldest are dropped.
    std::set<Id>& deleted = deleted_[holder];
    deleted.insert(fork);
    if (deleted.size() > kMaxRemembered) deleted.erase(deleted.begin());
  }
  if (!known) return {};
  remove_from(by_holder_, found->second, Fork{rref, fork});
  entry->second.forks.erase(found);
  return free_if_unreferenced(rref);
}

void OwnerTable::forget_delete(const Id& fork, uint64_t holder) { remove_from(deleted_, holder, fork); }

void OwnerTable::lose_holder(uint64_t holder) {
  // The forks stay until the fence has ended. The remembered deletes are not needed: nothing is accepted from
  // the holder any more.
  if (lost_.insert(holder)) unreleased_.insert(holder);
  deleted_.erase(holder);
}

OwnerTable::Freed OwnerTable::release_lost() {
  Freed freed;
  for (uint64_t holder : unreleased_) {
    const HashSet<Fork> forks = take_from(by_holder_, holder);
    examined_ += forks.size();
    for (const Fork& fork : forks) {
      entries_.find(fork.rref)->second.forks.erase(fork.fork);
      for (const Id& id : free_if_unreferenced(fork.rref)) freed.push_back(id);
    }
  }
  unreleased_.clear();
  return freed;
}

void OwnerTable::add_local(const Id& rref) { ++entries_[rref].local_handles; }

OwnerTable::Freed OwnerTable::delete_local(const Id& rref) {
  auto entry = entries_.find(rref);
  if (entry == entries_.end() || entry->second.local_handles == 0) return {};
  --entry->second.local_handles;
  return free_if_unreferenced(rref);
}

bool OwnerTable::has_fork(const Id& rref, const Id& fork) const {
  auto entry = entries_.find(rref);
  return entry != entries_.end() && entry->second.forks.contains(fork);
}

bool OwnerTable::deleted(const Id& fork, uint64_t holder) const {
  auto deleted = deleted_.find(holder);
  return deleted != deleted_.end() && deleted->second.contains(fork);
}

std::vector<OwnerTable::Fork> OwnerTable::forks_of(uint64_t holder, uint64_t allocator) const {
  std::vector<Fork> forks;
  auto held = by_holder_.find(holder);
  if (held == by_holder_.end()) return forks;
  examined_ += held->second.size();
  for (const Fork& fork : held->second) {
    if (fork.fork.origin == allocator) forks.push_back(fork);
  }
  return forks;
}

std::size_t OwnerTable::remembered_deletes() const {
  std::size_t total = 0;
  for (const auto& [holder, forks] : deleted_) total += forks.size();
  return total;
}

bool OwnerTable::consistent() const {
  decltype(by_holder_) by_holder;
  for (const auto& [rref, entry] : entries_) {
    for (const auto& [fork, holder] : entry.forks) by_holder[holder].insert({rref, fork});
  }
  return by_holder == by_holder_;
}

OwnerTable::Freed OwnerTable::free_if_unreferenced(const Id& rref) {
  auto entry = entries_.find(rref);
  if (entry == entries_.end() || !entry->second.forks.empty() || entry->second.local_handles > 0) return {};
  entries_.erase(entry);
  return {rref};
}

}  // namespace gradwire::rpc
