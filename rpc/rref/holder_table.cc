#include "rpc/rref/holder_table.h"

namespace gradwire::rpc {

void HolderTable::add(const Fork& fork, bool confirmed) {
  forks_.try_emplace(fork.fork, State{fork, confirmed});
}

HolderTable::Deletes HolderTable::confirm(const Id& fork) {
  auto found = forks_.find(fork);
  if (found == forks_.end()) return {};
  found->second.confirmed = true;
  return delete_if_done(fork);
}

HolderTable::Deletes HolderTable::release(const Id& fork) {
  auto found = forks_.find(fork);
  if (found == forks_.end()) return {};
  found->second.released = true;
  return delete_if_done(fork);
}

void HolderTable::add_child(const Id& parent, const Id& child, uint64_t receiver) {
  auto found = forks_.find(parent);
  if (found == forks_.end() || !children_.try_emplace(child, Child{parent, receiver}).second) return;
  ++found->second.children;
}

HolderTable::Deletes HolderTable::confirm_child(const Id& child, uint64_t receiver) {
  auto found = children_.find(child);
  if (found == children_.end() || found->second.receiver != receiver) return {};
  const Id parent = found->second.parent;
  children_.erase(found);
  auto fork = forks_.find(parent);
  if (fork == forks_.end()) return {};
  --fork->second.children;
  return delete_if_done(parent);
}

HolderTable::Deletes HolderTable::lose_worker(uint64_t incarnation) {
  Deletes deletes;
  std::vector<Id> orphans;
  for (const auto& [child, entry] : children_) {
    if (entry.receiver == incarnation) orphans.push_back(child);
  }
  for (const Id& child : orphans) {
    for (Fork& fork : confirm_child(child, incarnation)) {
      if (fork.owner != incarnation) deletes.push_back(fork);
    }
  }
  absl::erase_if(forks_, [incarnation](const auto& fork) { return fork.second.fork.owner == incarnation; });
  absl::erase_if(children_, [this](const auto& child) { return !forks_.contains(child.second.parent); });
  return deletes;
}

void HolderTable::forget(const Id& fork) {
  if (forks_.erase(fork) == 0) return;
  absl::erase_if(children_, [&fork](const auto& child) { return child.second.parent == fork; });
}

bool HolderTable::confirmed(const Id& fork) const {
  auto found = forks_.find(fork);
  return found != forks_.end() && found->second.confirmed;
}

HolderTable::Deletes HolderTable::delete_if_done(const Id& fork) {
  auto found = forks_.find(fork);
  const State& state = found->second;
  if (!state.confirmed || !state.released || state.children > 0) return {};
  Deletes deletes = {state.fork};
  forks_.erase(found);
  return deletes;
}

}  // namespace gradwire::rpc
