#include "gradwire/rpc/link/peer_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

// A worker is in by_incarnation_ from its join on. by_id_ and by_name_ have the newest worker of each id and
// name. A worker whose id or name was taken over by another one is superseded: messages of it can still be
// handled, but calls to it fail. mark_lost() bounds the tables.
namespace gradwire::rpc {

void PeerTable::fill(const Worker& self, const std::vector<WorkerAddress>& workers,
                     const std::vector<Worker>& gone) {
  MutexLock lock(mutex_);
  self_.id = self.id;
  for (const WorkerAddress& worker : workers) add_locked(worker);
  for (const Worker& worker : gone) gone_.insert(worker.incarnation);
}

void PeerTable::add(const WorkerAddress& worker) {
  MutexLock lock(mutex_);
  add_locked(worker);
}

void PeerTable::add_locked(const WorkerAddress& address) {
  const Worker& worker = address.worker;
  if (by_incarnation_.contains(worker.incarnation)) return;
  auto peer = std::make_shared<Peer>(address, worker.incarnation == self_.incarnation);
  for (std::shared_ptr<Peer>* slot : {&by_id_[worker.id], &by_name_[worker.name]}) {
    if (*slot != nullptr) by_incarnation_[(*slot)->worker.incarnation].superseded = true;
    *slot = peer;
  }
  by_incarnation_[worker.incarnation].peer = std::move(peer);
}

std::vector<Worker> PeerTable::workers(bool lost_too) const {
  std::vector<Worker> workers;
  MutexLock lock(mutex_);
  for (const auto& [id, peer] : by_id_) {
    if (lost_too || peer->status().ok()) workers.push_back(peer->worker);
  }
  return workers;
}

absl::StatusOr<std::shared_ptr<Peer>> PeerTable::find(const std::string& name, int32_t id) const {
  MutexLock lock(mutex_);
  if (name.empty()) {
    if (auto found = by_id_.find(id); found != by_id_.end()) return found->second;
  } else if (auto found = by_name_.find(name);
             found != by_name_.end() && (id < 0 || id == found->second->worker.id)) {
    return found->second;
  }
  std::vector<std::string> names;
  for (const auto& [peer_id, peer] : by_id_) {
    names.push_back(absl::StrCat("\"", peer->worker.name, "\" (", peer_id, ")"));
  }
  return absl::NotFoundError(
      absl::StrCat("worker ", name.empty() ? absl::StrCat("with id ", id) : absl::StrCat("\"", name, "\""),
                   " not found in the group; its workers are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::shared_ptr<Peer>> PeerTable::find(const Worker& worker) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(worker.incarnation);
  if (found == by_incarnation_.end()) {
    return absl::NotFoundError(absl::StrCat("worker \"", worker.name, "\" is not a member of the group"));
  }
  if (found->second.superseded) {
    return absl::AbortedError(
        absl::StrCat("worker \"", worker.name, "\" was restarted as a new incarnation"));
  }
  return found->second.peer;
}

std::shared_ptr<Peer> PeerTable::peer(uint64_t incarnation) const {
  MutexLock lock(mutex_);
  auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : found->second.peer;
}

absl::StatusOr<Worker> PeerTable::find_by_incarnation(uint64_t incarnation) const {
  if (const std::shared_ptr<Peer> found = peer(incarnation)) return found->worker;
  return absl::NotFoundError(
      absl::StrCat("incarnation ", absl::Hex(incarnation), " not found among the workers of the group"));
}

absl::Status PeerTable::status(const Worker& worker) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, find(worker));
  return peer->status();
}

GroupView::Standing PeerTable::standing(uint64_t incarnation, std::string* name) const {
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    if (gone_.contains(incarnation)) return Standing::kGone;
    auto found = by_incarnation_.find(incarnation);
    if (found == by_incarnation_.end()) return Standing::kStranger;
    peer = found->second.peer;
  }
  if (name != nullptr) *name = peer->worker.name;
  const WorkerState state = peer->state();
  if (state == WorkerState::kLeft) return Standing::kLeft;
  return state == WorkerState::kDead ? Standing::kDead : Standing::kMember;
}

bool PeerTable::is_stranger_locked(uint64_t incarnation) const {
  return !by_incarnation_.contains(incarnation) && !gone_.contains(incarnation);
}

bool PeerTable::knows_owners(const ReferenceList& references) const {
  if (references.empty()) return true;
  MutexLock lock(mutex_);
  for (const proto::Reference& reference : references) {
    if (is_stranger_locked(reference.owner())) return false;
  }
  return true;
}

Departures PeerTable::departures(uint64_t incarnation) const {
  const std::shared_ptr<Peer> found = peer(incarnation);
  return found == nullptr ? Departures() : found->departures();
}

bool PeerTable::require(uint64_t incarnation, const Departures& sent) {
  const std::shared_ptr<Peer> found = peer(incarnation);
  // False for an unknown worker: nothing is known to have settled.
  return found != nullptr && found->require(sent);
}

bool PeerTable::settled(uint64_t incarnation) {
  const std::shared_ptr<Peer> found = peer(incarnation);
  return found != nullptr && found->settled();
}

void PeerTable::mark_lost(const Worker& worker) {
  MutexLock lock(mutex_);
  // A group that workers join and leave for months must not grow without a bound. The newest lost workers
  // keep their entries, so that errors can name the cause. Of older ones only the incarnation is remembered,
  // so that they are refused.
  lost_.push_back(worker.incarnation);
  while (lost_.size() > GoneWorkers::kMax) {
    const auto oldest = by_incarnation_.find(lost_.front());
    lost_.pop_front();
    if (oldest == by_incarnation_.end()) continue;
    const std::shared_ptr<Peer> peer = std::move(oldest->second.peer);
    by_incarnation_.erase(oldest);
    gone_.insert(peer->worker.incarnation);
    // Another worker may have the name or the id by now.
    if (auto found = by_name_.find(peer->worker.name); found != by_name_.end() && found->second == peer)
      by_name_.erase(found);
    if (auto found = by_id_.find(peer->worker.id); found != by_id_.end() && found->second == peer)
      by_id_.erase(found);
  }
}

void PeerTable::count(AgentTables& tables) const {
  MutexLock lock(mutex_);
  for (const auto& [incarnation, entry] : by_incarnation_) {
    tables.numbered_links += entry.peer->departures().open.size();
  }
  tables.known_workers = by_incarnation_.size();
  tables.gone_workers += gone_.size();
}

void PeerTable::clear_links() {
  MutexLock lock(mutex_);
  for (const auto& [incarnation, entry] : by_incarnation_) entry.peer->clear();
}

}  // namespace gradwire::rpc
