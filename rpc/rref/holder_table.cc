#include "gradwire/rpc/rref/holder_table.h"

#include "gradwire/rpc/rref/index.h"

// Every event may arrive twice and late, so each function does nothing for a fork or a child that is not in
// the table. A fork leaves the table in delete_if_done(), which returns the delete to send, or in
// lose_worker(), which needs none.
namespace gradwire::rpc {

void HolderTable::add(const Fork& fork, bool confirmed) {
  const bool added = forks_.try_emplace(fork.fork, State{fork, confirmed}).second;
  if (!added) return;
  by_owner_[fork.owner].insert(fork.fork);
  if (fork.giver == 0) return;
  given_.add(fork.giver);
  // No fence waits for a fork that this worker made by creating the RRef, or that the owner has registered.
  if (confirmed) return;
  unconfirmed_.emplace(fork.fork, fork.giver);
  unconfirmed_of_.add(fork.giver);
}

void HolderTable::remove_fork(Forks::iterator fork) {
  remove_unconfirmed(fork->first);
  given_.remove(fork->second.fork.giver);
  remove_from(by_owner_, fork->second.fork.owner, fork->first);
  forks_.erase(fork);
}

void HolderTable::remove_child(Children::iterator child) {
  remove_from(by_receiver_, child->second.receiver, child->first);
  remove_from(by_parent_, child->second.fork, child->first);
  children_.erase(child);
}

void HolderTable::remove_unconfirmed(const Id& fork) {
  auto found = unconfirmed_.find(fork);
  if (found == unconfirmed_.end()) return;
  unconfirmed_of_.remove(found->second);
  unconfirmed_.erase(found);
}

HolderTable::Deletes HolderTable::confirm(const Id& fork) {
  remove_unconfirmed(fork);
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
  by_receiver_[receiver].insert(child);
  by_parent_[parent].insert(child);
  ++found->second.children;
}

HolderTable::Deletes HolderTable::confirm_child(const Id& child, uint64_t receiver) {
  auto found = children_.find(child);
  // Only the receiver of a child may confirm it. Another worker could make this worker delete its fork too
  // early.
  if (found == children_.end() || found->second.receiver != receiver) return {};
  const Id parent = found->second.fork;
  remove_child(found);
  auto fork = forks_.find(parent);
  if (fork == forks_.end()) return {};
  --fork->second.children;
  return delete_if_done(parent);
}

std::vector<HolderTable::Fork> HolderTable::lose_worker(uint64_t incarnation) {
  std::vector<Fork> never;
  const HashSet<Id> owned = take_from(by_owner_, incarnation);
  examined_ += owned.size();
  for (const Id& fork : owned) {
    auto found = forks_.find(fork);
    if (!found->second.confirmed) never.push_back(found->second.fork);
    remove_fork(found);
    // The fork is gone, so nothing is kept for its children.
    const HashSet<Id> children = take_from(by_parent_, fork);
    examined_ += children.size();
    for (const Id& child : children) remove_child(children_.find(child));
  }
  // The lost worker may have passed its fork on. So its children keep their forks until the fence has ended.
  if (has_children_of(incarnation)) lost_.insert(incarnation);
  return never;
}

HolderTable::Deletes HolderTable::release_lost() {
  Deletes deletes;
  for (const uint64_t receiver : lost_) {
    const HashSet<Id> children = take_from(by_receiver_, receiver);
    examined_ += children.size();
    for (const Id& child : children) {
      for (Fork& fork : confirm_child(child, receiver)) deletes.push_back(fork);
    }
  }
  lost_.clear();
  return deletes;
}

std::vector<Id> HolderTable::forks_of(uint64_t owner) const {
  auto forks = by_owner_.find(owner);
  if (forks == by_owner_.end()) return {};
  examined_ += forks->second.size();
  return {forks->second.begin(), forks->second.end()};
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

std::vector<HolderTable::Child> HolderTable::children_of(uint64_t receiver) const {
  std::vector<Child> children;
  auto found = by_receiver_.find(receiver);
  if (found == by_receiver_.end()) return children;
  examined_ += found->second.size();
  for (const Id& child : found->second) children.push_back({children_.at(child).rref, child});
  return children;
}

bool HolderTable::has_unconfirmed_from(const HashSet<uint64_t>& sharers) const {
  return unconfirmed_of_.any([&sharers](uint64_t sharer) { return sharers.contains(sharer); });
}

bool HolderTable::consistent() const {
  WorkerCounts given;
  Index<uint64_t> by_owner;
  for (const auto& [fork, state] : forks_) {
    if (state.fork.giver != 0) given.add(state.fork.giver);
    by_owner[state.fork.owner].insert(fork);
  }
  Index<uint64_t> by_receiver;
  Index<Id> by_parent;
  for (const auto& [child, parent] : children_) {
    by_receiver[parent.receiver].insert(child);
    by_parent[parent.fork].insert(child);
  }
  WorkerCounts unconfirmed_of;
  for (const auto& [fork, sharer] : unconfirmed_) unconfirmed_of.add(sharer);
  return given == given_ && by_owner == by_owner_ && by_receiver == by_receiver_ && by_parent == by_parent_ &&
         unconfirmed_of == unconfirmed_of_;
}

HolderTable::Deletes HolderTable::delete_if_done(const Id& fork) {
  auto found = forks_.find(fork);
  const State& state = found->second;
  if (!state.released) return {};
  if (!state.confirmed) return {};
  if (state.children > 0) return {};
  Deletes deletes = {state.fork};
  remove_fork(found);
  return deletes;
}

}  // namespace gradwire::rpc
