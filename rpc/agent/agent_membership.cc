#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/link/link.h"

// How an agent learns who is in the group and who has gone, and what follows.
//
// Two things are told apart. A worker is lost as soon as this one knows that it is dead or has left: calls to it end, its
// own are dropped, nothing is taken from it any more. The group agrees on it when the log says so: only then it is certain
// who must be asked before references that the dead one had are let go. A worker that cannot reach the store never agrees
// alone: others may reach it and join. So what it keeps for the dead stays until it has read the log again.
namespace gradwire::rpc {

absl::StatusOr<std::shared_ptr<Peer>> AgentImpl::find(const Destination& destination) const {
  if (destination.incarnation() == 0) return peers->find(destination.name(), destination.id());
  return peers->find(Worker{destination.name(), destination.id(), destination.incarnation()});
}

absl::Status AgentImpl::join(std::shared_ptr<store::Store> store, int rank, int size) {
  self.id = rank;
  world_size = size;
  directory = std::make_unique<Directory>(std::move(store), options.heartbeat.dead_after);
  GRADWIRE_ASSIGN_OR_RETURN(proto::WorkerRecord record, peers->listen(self));
  GRADWIRE_ASSIGN_OR_RETURN(
      Directory::Group group,
      directory->join(self, world_size, record, options.join_timeout,
                      [this](const proto::WorkerRecord& other, absl::Duration patience) {
                        return peers->look_for(other, patience);
                      }));
  self = group.self;
  for (const Worker& gone : group.gone) rrefs->forget(gone.incarnation);
  for (const WorkerAddress& member : group.members) rrefs->worker_joined(member.worker);
  peers->set_workers(self, group.members, group.gone);
  directory->follow(*this);
  return absl::OkStatus();
}

void AgentImpl::on_joined(const WorkerAddress& worker) {
  {
    MutexLock lock(membership_mutex_);
    accused_strangers_.erase(worker.worker.incarnation);
  }
  log(LogLevel::kInfo, "worker \"", self.name, "\": worker \"", worker.worker.name, "\" (id ",
      worker.worker.id, ") joined the group");
  // First the protocol: what the worker sends may come as soon as it is admitted.
  rrefs->worker_joined(worker.worker);
  peers->add_worker(worker);
  changes->notify(worker.worker.info(), WorkerState::kAlive);
  changes->joined(worker.worker.info());
}

void AgentImpl::on_left(const Worker& worker) {
  peers->lose(worker, WorkerState::kLeft,
              absl::UnavailableError(absl::StrCat("worker \"", worker.name, "\" has left")));
  agree(worker.incarnation);
}

void AgentImpl::on_died(const Worker& worker, const std::string& by, const std::string& reason) {
  if (worker.incarnation == self.incarnation) {
    const absl::Status fenced = absl::AbortedError(
        absl::StrCat("this worker, \"", self.name, "\", was declared dead by \"", by, "\" (", reason,
                     "): the group goes on without it, and it must start anew"));
    log(LogLevel::kError, fenced.message());
    for (const Worker& other : peers->live_workers()) {
      if (other.incarnation != self.incarnation) peers->lose(other, WorkerState::kDead, fenced);
    }
    changes->fail(fenced, /*for_good=*/true);
    return;
  }
  peers->lose(worker, WorkerState::kDead,
              absl::UnavailableError(absl::StrCat("worker \"", worker.name, "\" is dead, as worker \"", by,
                                                  "\" found: ", reason)));
  agree(worker.incarnation);
}

void AgentImpl::agree(uint64_t incarnation) {
  {
    MutexLock lock(membership_mutex_);
    if (ending_) return;
  }
  rrefs->death_agreed(incarnation);
}

void AgentImpl::on_store_lost(const absl::Status& reason) {
  absl::flat_hash_set<uint64_t> strangers;
  {
    MutexLock lock(membership_mutex_);
    store_lost_ = true;
    strangers.swap(accused_strangers_);
  }
  for (uint64_t incarnation : strangers) {
    if (!peers->find_by_incarnation(incarnation).ok()) rrefs->lose_stranger(incarnation);
  }
  changes->fail(with_context(reason, "nobody can join, since the store cannot be reached"),
                /*for_good=*/false);
}

void AgentImpl::on_store_back() {
  MutexLock lock(membership_mutex_);
  store_lost_ = false;
}

void AgentImpl::count_membership(AgentTables& tables) const {
  tables.waiting_for_workers = changes->waiting();
  MutexLock lock(membership_mutex_);
  tables.accused_strangers = accused_strangers_.size();
}

bool AgentImpl::without_store() const {
  MutexLock lock(membership_mutex_);
  return store_lost_;
}

void AgentImpl::on_worker_state(const Worker& peer, WorkerState state) {
  changes->notify(peer.info(), state);
}

void AgentImpl::on_unresponsive(const Worker& peer, const absl::Status& reason) {
  if (without_store()) {
    peers->lose(peer, WorkerState::kDead, reason);
  } else {
    // Its death follows from the log, unless this worker's own comes first.
    directory->declare_dead(peer, std::string(reason.message()));
  }
}

void AgentImpl::on_accused(uint64_t incarnation) {
  if (incarnation == self.incarnation) return;
  absl::StatusOr<Worker> worker = peers->find_by_incarnation(incarnation);
  if (!worker.ok()) {
    // The log will tell of it. Until it can be read, nothing is taken from that one, so that the asker gets its answer.
    {
      constexpr std::size_t kMaxStrangers = 65536;
      MutexLock lock(membership_mutex_);
      if (accused_strangers_.size() < kMaxStrangers) accused_strangers_.insert(incarnation);
      if (!store_lost_) return;
    }
    rrefs->lose_stranger(incarnation);
    return;
  }
  peers->lose(
      *worker, WorkerState::kDead,
      absl::UnavailableError(absl::StrCat("worker \"", worker->name, "\" is dead, as another worker found")));
}

void AgentImpl::on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) {
  log(LogLevel::kInfo, "worker \"", self.name, "\" lost worker \"", peer.name, "\": ", reason.message());
  bool ending = false;
  {
    MutexLock lock(membership_mutex_);
    ending = ending_;
  }
  server->worker_lost(peer, reason);
  if (!ending) rrefs->worker_lost(peer, reason);
  for (const auto& extension : extensions) extension->worker_lost(peer, reason);
  for (PendingCalls::Taken& call : pending.take_worker(peer.incarnation)) {
    const std::string text = absl::StrCat("\"", call->callee, "\" was under way: ", reason.message());
    complete(std::move(call), with_worker(absl::Status(reason.code(), text), peer.name));
  }
  changes->notify(peer.info(), state);
  // Also of one who left, and without a store: when the store can be reached again, the log gets the line, and only then
  // the group agrees.
  // Where it is the other that refuses this one, the log decides who stays.
  if (!ending && !absl::IsAborted(reason)) directory->declare_dead(peer, std::string(reason.message()));
}

void AgentImpl::on_link_restored(const Worker& peer) { rrefs->link_restored(peer); }

void AgentImpl::on_settled(const Worker& peer) { rrefs->settled(peer); }

absl::StatusOr<WorkerInfo> AgentImpl::wait_for_worker(const std::string& name, absl::Duration timeout) {
  GRADWIRE_RETURN_IF_ERROR(accepts_calls());
  // Before looking: who joins in between is announced.
  Future<WorkerInfo> joined = changes->wait_for(name);
  if (absl::StatusOr<std::shared_ptr<Peer>> peer = peers->find(name, -1); peer.ok()) {
    const WorkerState state = peers->state(**peer);
    if (state == WorkerState::kAlive || state == WorkerState::kSuspect) {
      joined.cancel();
      return (*peer)->worker.info();
    }
  }
  if (without_store()) {
    joined.cancel();
    return absl::UnavailableError(absl::StrCat("worker \"", name,
                                               "\" has not joined, and nobody can: the store of \"",
                                               self.name, "\" cannot be reached"));
  }
  if (joined.wait_for(timeout)) return joined.result();
  joined.cancel();
  return absl::DeadlineExceededError(
      absl::StrCat("worker \"", name, "\" did not join within ", absl::FormatDuration(timeout)));
}

}  // namespace gradwire::rpc
