#include "rpc/rref/owner_table.h"

namespace gradwire::rpc {

OwnerTable::Freed OwnerTable::add_fork(const Id& rref, const Id& fork, uint64_t holder) {
  bool gone = lost_.contains(holder);
  if (auto early = early_deletes_.find(holder);
      early != early_deletes_.end() && early->second.erase(fork) > 0) {
    gone = true;
    if (early->second.empty()) early_deletes_.erase(early);
  }
  Entry& entry = entries_[rref];
  if (!gone) entry.forks.try_emplace(fork, holder);
  return free_if_unreferenced(rref);
}

OwnerTable::Freed OwnerTable::delete_fork(const Id& rref, const Id& fork, uint64_t holder) {
  auto entry = entries_.find(rref);
  if (entry != entries_.end()) {
    auto found = entry->second.forks.find(fork);
    if (found != entry->second.forks.end()) {
      if (found->second != holder) return {};
      entry->second.forks.erase(found);
      return free_if_unreferenced(rref);
    }
  }
  // Only a fork that its holder allocated itself can be deleted before it is added: its creating request was
  // lost or is late. A second delete of any other fork needs no memory.
  if (fork.origin == holder && !lost_.contains(holder)) {
    std::set<Id>& early = early_deletes_[holder];
    early.insert(fork);
    if (early.size() > kMaxEarlyDeletes) early.erase(early.begin());
  }
  return {};
}

OwnerTable::Freed OwnerTable::lose_holder(uint64_t holder) {
  lost_.insert(holder);
  early_deletes_.erase(holder);
  std::vector<Id> touched;
  for (auto& [rref, entry] : entries_) {
    if (absl::erase_if(entry.forks, [holder](const auto& fork) { return fork.second == holder; }) > 0) {
      touched.push_back(rref);
    }
  }
  Freed freed;
  for (const Id& rref : touched) {
    for (const Id& id : free_if_unreferenced(rref)) freed.push_back(id);
  }
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

std::size_t OwnerTable::early_deletes() const {
  std::size_t total = 0;
  for (const auto& [holder, forks] : early_deletes_) total += forks.size();
  return total;
}

OwnerTable::Freed OwnerTable::free_if_unreferenced(const Id& rref) {
  auto entry = entries_.find(rref);
  if (entry == entries_.end() || !entry->second.forks.empty() || entry->second.local_handles > 0) return {};
  entries_.erase(entry);
  return {rref};
}

}  // namespace gradwire::rpc
