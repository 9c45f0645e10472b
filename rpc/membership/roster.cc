#include "gradwire/rpc/membership/roster.h"

#include <algorithm>

// check() decides and apply() carries out, so that a writer can find out what a line would do before it
// appends it. Both use the entries alone, so that all readers of the log come to the same members.
namespace gradwire::rpc {

using What = Roster::Change::What;

Roster::Status Roster::status(uint64_t incarnation) const {
  auto known = known_.find(incarnation);
  return known == known_.end() ? Status::kUnknown : known->second.status;
}

const Worker* Roster::find(const std::string& name) const {
  for (const auto& [id, member] : members_) {
    if (member.name == name) return &member;
  }
  return nullptr;
}

Roster::Change Roster::check(const RosterEntry& entry) const {
  const Worker& worker = entry.worker;
  if (entry.kind != RosterEntry::Kind::kJoin) {
    // A second death or leave of the same worker has no effect.
    if (status(worker.incarnation) != Status::kMember) return {};
    const bool death = entry.kind == RosterEntry::Kind::kDeath;
    // The accuser need not be a member: a worker that joins may find that the holder of its name is dead.
    const Status by = status(entry.by);
    if (death && (by == Status::kDead || by == Status::kLeft)) return {};
    return {death ? What::kDied : What::kLeft, members_.at(known_.at(worker.incarnation).id)};
  }
  // An incarnation joins once. A copy of its line has no effect, even after its end.
  if (status(worker.incarnation) != Status::kUnknown) return {};
  // The first member sets the world size. When all members have left, the next one may set another.
  if (!members_.empty() && entry.world_size != world_size_) {
    return {What::kOtherWorldSize, members_.begin()->second, world_size_};
  }
  if (auto same = members_.find(worker.id); same != members_.end()) return {What::kIdTaken, same->second};
  if (const Worker* same = find(worker.name)) return {What::kNameTaken, *same};
  Change joined{What::kJoined, worker};
  if (worker.id < 0) joined.worker.id = next_id_;
  return joined;
}

Roster::Change Roster::apply(const RosterEntry& entry) {
  ++position_;
  Change change = check(entry);
  switch (change.what) {
    case What::kJoined:
      world_size_ = entry.world_size;
      // Ids that the roster assigns are never used twice, so a new worker is not taken for an earlier one.
      next_id_ = std::max(next_id_, change.worker.id + 1);
      known_[change.worker.incarnation] = {change.worker.id, Status::kMember};
      members_[change.worker.id] = change.worker;
      break;
    case What::kLeft:
      remove(entry.worker.incarnation, Status::kLeft);
      break;
    case What::kDied:
      remove(entry.worker.incarnation, Status::kDead);
      break;
    default:
      break;
  }
  return change;
}

void Roster::remove(uint64_t incarnation, Status as) {
  Known& known = known_.at(incarnation);
  members_.erase(known.id);
  known.status = as;
}

}  // namespace gradwire::rpc
