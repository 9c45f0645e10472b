#include "gradwire/rpc/agent/membership_driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/membership/shared_id.h"

namespace gradwire::rpc {
namespace {

// How often a wait without a limit checks whether the store is lost.
constexpr absl::Duration kStoreCheck = absl::Seconds(1);

}  // namespace

MembershipDriver::MembershipDriver(AgentRuntime& runtime, Peers& peers, ReferenceDriver& references)
    : runtime_(runtime), peers_(peers), references_(references), changes_(runtime.executor) {}

// The order of the steps matters:
//   1. Listen before the join: the log has the addresses, and they may connect at once. Their
//      messages are held until step 4.
//   2. Join the group.
//   3. Report to the reference protocol who is lost and who is a member. A message from a member may contain
//      references.
//   4. Make the members known to Peers, which handles the held messages.
//   5. Follow the log for what comes later.
absl::Status MembershipDriver::join(std::shared_ptr<store::Store> store, int rank, int world_size) {
  set_shared_id(runtime_.self, rank);
  world_size_ = world_size;
  directory_ = std::make_unique<Directory>(std::move(store), runtime_.options.heartbeat.dead_after);
  GRADWIRE_ASSIGN_OR_RETURN(proto::WorkerRecord record, peers_.listen(runtime_.self));
  runtime_.devices.announce(record);
  GRADWIRE_ASSIGN_OR_RETURN(
      Directory::Group group,
      directory_->join(runtime_.self, world_size_, record, runtime_.options.join_timeout,
                       [this](const proto::WorkerRecord& other, absl::Duration timeout) {
                         return peers_.check_life(other, timeout);
                       }));
  // Only the id can be new. Metrics and flight records read the name on other threads at this time.
  set_shared_id(runtime_.self, group.self.id);
  for (const Worker& gone : group.gone) references_.forget(gone.incarnation);
  for (const WorkerAddress& member : group.members) references_.worker_joined(member.worker);
  absl::Status mapped;
  for (const WorkerAddress& member : group.members) {
    mapped.Update(runtime_.devices.joined(member.worker, member.record));
  }
  peers_.set_workers(runtime_.self, group.members, group.gone);
  GRADWIRE_RETURN_IF_ERROR(directory_->follow(*this));
  return mapped;
}

void MembershipDriver::stop(const absl::Status& reason) {
  if (directory_ != nullptr) {
    (void)directory_->leave();
    directory_->stop();
  }
  changes_.fail(reason, /*permanently=*/true);
}

void MembershipDriver::on_joined(const WorkerAddress& worker) {
  {
    MutexLock lock(mutex_);
    accused_strangers_.erase(worker.worker.incarnation);
  }
  log(LogLevel::kInfo, "worker \"", runtime_.self.name, "\": worker \"", worker.worker.name, "\" (id ",
      worker.worker.id, ") joined the group");
  // A call to the worker reports the error again.
  if (absl::Status mapped = runtime_.devices.joined(worker.worker, worker.record); !mapped.ok()) {
    log(LogLevel::kError, mapped.message());
  }
  // Inform the reference protocol first: messages of the worker may arrive as soon as Peers knows it.
  references_.worker_joined(worker.worker);
  peers_.add_worker(worker);
  changes_.notify(worker.worker.info(), WorkerState::kAlive);
  changes_.joined(worker.worker.info());
}

// Two steps, as for a death: first the worker is lost, then its end is agreed, because the log has it. The
// answers that the worker sent before it left may arrive between the two.
void MembershipDriver::on_left(const Worker& worker) {
  peers_.lose(worker, WorkerState::kLeft,
              absl::UnavailableError(absl::StrCat("worker \"", worker.name, "\" has left")));
  end_in_log(worker.incarnation);
}

void MembershipDriver::on_died(const Worker& worker, const std::string& by, const std::string& reason) {
  if (worker.incarnation == runtime_.self.incarnation) {
    const absl::Status fenced = absl::AbortedError(
        absl::StrCat("this worker, \"", runtime_.self.name, "\", was declared dead by \"", by, "\" (", reason,
                     "): the group continues without it, and it must be restarted"));
    log(LogLevel::kError, fenced.message());
    // The group refuses this worker, so each of its calls would wait for a Goodbye, or for its deadline. End
    // them now. Nothing is freed because of these losses: their deaths are not agreed.
    for (const Worker& other : peers_.live_workers()) {
      if (other.incarnation != runtime_.self.incarnation) peers_.lose(other, WorkerState::kDead, fenced);
    }
    changes_.fail(fenced, /*permanently=*/true);
    return;
  }
  peers_.lose(worker, WorkerState::kDead,
              absl::UnavailableError(absl::StrCat("worker \"", worker.name,
                                                  "\" is dead, according to worker \"", by, "\": ", reason)));
  end_in_log(worker.incarnation);
}

// The log and the end of the connections report on different threads. The second of them goes on.
void MembershipDriver::end_in_log(uint64_t incarnation) {
  {
    MutexLock lock(mutex_);
    if (lost_.erase(incarnation) == 0) {
      ended_in_log_.insert(incarnation);
      return;
    }
  }
  death_agreed(incarnation);
}

void MembershipDriver::loss_complete(uint64_t incarnation) {
  {
    MutexLock lock(mutex_);
    if (ended_in_log_.erase(incarnation) == 0) {
      lost_.insert(incarnation);
      return;
    }
  }
  death_agreed(incarnation);
}

void MembershipDriver::death_agreed(uint64_t incarnation) {
  runtime_.devices.left(incarnation);
  if (!ending()) references_.death_agreed(incarnation);
}

// Waits for joins go on: the store may be back before they end. If it has lost the log, nobody can join.
void MembershipDriver::on_store_lost(const absl::Status& reason, bool for_good) {
  HashSet<uint64_t> strangers;
  {
    MutexLock lock(mutex_);
    store_lost_ = reason;
    // The log cannot name them now, and fences of other workers wait for this one's answer.
    strangers.swap(accused_strangers_);
  }
  for (uint64_t incarnation : strangers) {
    if (!peers_.find_by_incarnation(incarnation).ok()) references_.lose(incarnation);
  }
  if (for_good) changes_.fail(reason, /*permanently=*/true);
}

void MembershipDriver::on_store_back() {
  MutexLock lock(mutex_);
  store_lost_ = absl::OkStatus();
}

void MembershipDriver::count(AgentTables& tables) const {
  tables.waiting_for_workers = changes_.waiting();
  MutexLock lock(mutex_);
  tables.accused_strangers = accused_strangers_.size();
}

absl::Status MembershipDriver::store_lost() const {
  MutexLock lock(mutex_);
  return store_lost_;
}

void MembershipDriver::worker_unresponsive(const Worker& peer, const absl::Status& reason) {
  if (without_store()) {
    peers_.lose(peer, WorkerState::kDead, reason);
  } else {
    // The log decides: it will name the death of the peer, or that of this worker if that comes first.
    directory_->declare_dead(peer, Directory::Knowledge::kSilence, std::string(reason.message()));
  }
}

void MembershipDriver::worker_state(const Worker& peer, WorkerState state) {
  if (state == WorkerState::kAlive) directory_->answered(peer.incarnation);
  changes_.notify(peer.info(), state);
}

void MembershipDriver::worker_accused(uint64_t incarnation) {
  if (incarnation == runtime_.self.incarnation) return;
  absl::StatusOr<Worker> worker = peers_.find_by_incarnation(incarnation);
  if (!worker.ok()) {
    // The log will name this worker. If the log cannot be read, messages of that worker are refused from now
    // on, so that the fence of the asking worker can be answered.
    {
      // A bound for a hostile peer, which can invent incarnations.
      constexpr std::size_t kMaxStrangers = 65536;
      MutexLock lock(mutex_);
      if (accused_strangers_.size() < kMaxStrangers) accused_strangers_.insert(incarnation);
      if (store_lost_.ok()) return;
    }
    references_.lose(incarnation);
    return;
  }
  peers_.lose(*worker, WorkerState::kDead,
              absl::UnavailableError(
                  absl::StrCat("worker \"", worker->name, "\" is dead, according to another worker")));
}

void MembershipDriver::begin_ending() {
  MutexLock lock(mutex_);
  ending_ = true;
}

bool MembershipDriver::ending() const {
  MutexLock lock(mutex_);
  return ending_;
}

void MembershipDriver::worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) {
  changes_.notify(peer.info(), state);
  // Append the loss to the log, also for a worker that has left, and also without a store: the line is
  // written when the store can be reached again, and only then the group agrees. Aborted means that the peer
  // regards this worker as dead. Then the log decides which of the two stays a member.
  if (!ending() && !absl::IsAborted(reason)) {
    directory_->declare_dead(peer, Directory::Knowledge::kProof, std::string(reason.message()));
  }
  loss_complete(peer.incarnation);
}

absl::StatusOr<WorkerInfo> MembershipDriver::wait_for_worker(const std::string& name,
                                                             absl::Duration timeout) {
  GRADWIRE_RETURN_IF_ERROR(runtime_.accepts_calls());
  // Register before the check below, so that a worker that joins in between is noticed.
  Future<WorkerInfo> joined = changes_.wait_for(name);
  if (absl::StatusOr<std::shared_ptr<Peer>> peer = peers_.find(name, -1); peer.ok()) {
    const WorkerState state = peers_.state(**peer);
    if (state == WorkerState::kAlive || state == WorkerState::kSuspect) {
      joined.cancel();
      return (*peer)->worker.info();
    }
  }
  // A wait without a limit also ends when the store is lost, but not at once: a program that repeats it must
  // not spin.
  const bool limited = timeout != absl::InfiniteDuration();
  bool done = joined.wait_for(limited ? timeout : kStoreCheck);
  while (!done && !limited && !without_store()) done = joined.wait_for(kStoreCheck);
  if (done) return joined.result();
  joined.cancel();
  if (const absl::Status lost = store_lost(); !lost.ok()) {
    return with_context(lost,
                        absl::StrCat("worker \"", name, "\" has not joined, and no worker can join while \"",
                                     runtime_.self.name, "\" cannot reach the store"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("worker \"", name, "\" did not join within ", absl::FormatDuration(timeout)));
}

}  // namespace gradwire::rpc
