#include "gradwire/rpc/rref/holder_table.h"

// Every event may arrive twice and late, so each function does nothing for a fork or a child that is not in
// the table. A fork leaves the table in delete_if_done(), which returns the delete to send, or in
// lose_worker(), which needs none.
namespace gradwire::rpc {

void HolderTable::add(const Fork& fork, bool confirmed) {
  const bool added = forks_.try_emplace(fork.fork, State{fork, confirmed}).second;
  if (!added || fork.giver == 0) return;
  given_.add(fork.giver);
  // No fence waits for a fork that this worker made by creating the RRef, or that the owner has registered.
  if (!confirmed) unconfirmed_.emplace(fork.fork, fork.giver);
}

HolderTable::Deletes HolderTable::confirm(const Id& fork) {
  unconfirmed_.erase(fork);
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
  if (found == forks_.end()) return;
  // A child that is added twice counts once.
  if (!children_.try_emplace(child, Parent{parent, found->second.fork.rref, receiver}).second) return;
  ++found->second.children;
}

HolderTable::Deletes HolderTable::confirm_child(const Id& child, uint64_t receiver) {
  auto found = children_.find(child);
  // Only the receiver of a child may confirm it. Another worker could make this worker delete its fork too
  // early.
  if (found == children_.end() || found->second.receiver != receiver) return {};
  const Id parent = found->second.fork;
  children_.erase(found);
  auto fork = forks_.find(parent);
  if (fork == forks_.end()) return {};
  --fork->second.children;
  return delete_if_done(parent);
}

std::vector<HolderTable::Fork> HolderTable::lose_worker(uint64_t incarnation) {
  std::vector<Fork> never;
  absl::erase_if(forks_, [&](const auto& entry) {
    const State& state = entry.second;
    if (state.fork.owner != incarnation) return false;
    if (!state.confirmed) never.push_back(state.fork);
    unconfirmed_.erase(entry.first);
    given_.remove(state.fork.giver);
    return true;
  });
  // Their forks are gone, so nothing is kept for them.
  absl::erase_if(children_, [this](const auto& child) { return !forks_.contains(child.second.fork); });
  // The lost worker may have passed its fork on. So its children keep their forks until the fence has ended.
  if (has_children_of(incarnation)) lost_.insert(incarnation);
  return never;
}

HolderTable::Deletes HolderTable::release_lost() {
  if (lost_.empty()) return {};
  // Collected first, because confirm_child() erases from children_.
  std::vector<std::pair<Id, uint64_t>> orphans;
  for (const auto& [child, parent] : children_) {
    if (lost_.contains(parent.receiver)) orphans.emplace_back(child, parent.receiver);
  }
  lost_.clear();
  Deletes deletes;
  for (const auto& [child, receiver] : orphans) {
    for (Fork& fork : confirm_child(child, receiver)) deletes.push_back(fork);
  }
  return deletes;
}

std::vector<Id> HolderTable::forks_of(uint64_t owner) const {
  std::vector<Id> forks;
  for (const auto& [fork, state] : forks_) {
    if (state.fork.owner == owner) forks.push_back(fork);
  }
  return forks;
}

HolderTable::Stage HolderTable::stage(const Id& fork) const {
  auto found = forks_.find(fork);
  if (found == forks_.end()) return Stage::kAbsent;
  const State& state = found->second;
  if (state.confirmed) return state.released ? Stage::kConfirmedReleased : Stage::kConfirmed;
  return state.released ? Stage::kUnconfirmedReleased : Stage::kUnconfirmed;
}

uint64_t HolderTable::sharer_of_unconfirmed(const Id& fork) const {
  auto found = unconfirmed_.find(fork);
  return found == unconfirmed_.end() ? 0 : found->second;
}

uint64_t HolderTable::receiver_of(const Id& child) const {
  auto found = children_.find(child);
  return found == children_.end() ? 0 : found->second.receiver;
}

bool HolderTable::has_children_of(uint64_t receiver) const {
  for (const auto& [child, parent] : children_) {
    if (parent.receiver == receiver) return true;
  }
  return false;
}

std::vector<HolderTable::Child> HolderTable::children_of(uint64_t receiver) const {
  std::vector<Child> children;
  for (const auto& [child, parent] : children_) {
    if (parent.receiver == receiver) children.push_back({parent.rref, child});
  }
  return children;
}

bool HolderTable::has_unconfirmed_from(const absl::flat_hash_set<uint64_t>& sharers) const {
  for (const auto& [fork, sharer] : unconfirmed_) {
    if (sharers.contains(sharer)) return true;
  }
  return false;
}

HolderTable::Deletes HolderTable::delete_if_done(const Id& fork) {
  auto found = forks_.find(fork);
  const State& state = found->second;
  if (!state.released) return {};
  if (!state.confirmed) return {};
  if (state.children > 0) return {};
  Deletes deletes = {state.fork};
  unconfirmed_.erase(fork);
  given_.remove(state.fork.giver);
  forks_.erase(found);
  return deletes;
}

}  // namespace gradwire::rpc
