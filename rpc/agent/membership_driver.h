#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/membership/worker_changes.h"
#include "gradwire/rpc/rref/reference_driver.h"
#include "gradwire/rpc/runtime/runtime.h"

namespace gradwire::rpc {

// Keeps an agent informed about the members of its group, and handles joins and losses.
//
// A loss and an agreed death are different. A worker is lost as soon as this worker knows that it is dead or
// has left: calls to it fail, its own calls are dropped, and its messages are refused. A death is agreed when
// the group's log names it. Only then it is certain which workers must be asked before the references of the
// dead worker are released. A worker that cannot reach the store never agrees alone, because other workers
// may reach the store and join. So it keeps what belongs to dead workers until it has read the log again.
//
// Thread-safe. The agent owns it. The arguments of the constructor must outlive it.
class MembershipDriver : public Directory::Listener {
 public:
  MembershipDriver(AgentRuntime& runtime, Peers& peers, ReferenceDriver& references);

  // Joins the group, sets the id of this worker, and follows the log from there on.
  absl::Status join(std::shared_ptr<store::Store> store, int rank, int world_size);
  // Leaves the group, if it was joined. No change of the group is reported afterwards.
  void stop(const absl::Status& reason);

  // Whether the group is open: workers may join and leave at any time.
  bool is_open() const { return world_size_ == 0; }
  // Waits up to `timeout` until a worker with this name is a member. Errors: as Agent::wait_for_worker.
  absl::StatusOr<WorkerInfo> wait_for_worker(const std::string& name, absl::Duration timeout);
  // Whether the store is lost. While that is so, no worker joins, and this worker decides alone which workers
  // it loses.
  bool without_store() const { return !store_lost().ok(); }
  // Call when all members have agreed to stop: departures are expected from here on, and not reported.
  void begin_ending();
  bool ending() const;

  // Handle what Peers reports about a worker.
  void worker_unresponsive(const Worker& peer, const absl::Status& reason);
  void worker_state(const Worker& peer, WorkerState state);
  void worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason);
  // Call when another worker says that this incarnation is dead.
  void worker_accused(uint64_t incarnation);

  // Directory::Listener
  void on_joined(const WorkerAddress& worker) override;
  void on_left(const Worker& worker) override;
  void on_died(const Worker& worker, const std::string& by, const std::string& reason) override;
  void on_store_lost(const absl::Status& reason, bool for_good) override;
  void on_store_back() override;

  WorkerChanges& changes() { return changes_; }
  // nullptr before join().
  Directory* directory() const { return directory_.get(); }
  void count(AgentTables& tables) const;

 private:
  // OK, or the reason why the store is lost.
  absl::Status store_lost() const;
  // Call once each: when the log contains the worker's end, and when this worker has lost it.
  void end_in_log(uint64_t incarnation);
  void loss_complete(uint64_t incarnation);
  // Both have happened.
  void death_agreed(uint64_t incarnation);

  AgentRuntime& runtime_;
  Peers& peers_;
  ReferenceDriver& references_;
  // Set by join().
  std::unique_ptr<Directory> directory_;
  int world_size_ = 0;
  // Synchronised by itself.
  WorkerChanges changes_;

  mutable Mutex mutex_;
  // Why the store is lost; OK while it can be reached.
  absl::Status store_lost_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Incarnations of which only one of the two is known: the end in the log, or the loss.
  HashSet<uint64_t> ended_in_log_ ABSL_GUARDED_BY(mutex_);
  HashSet<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  // Incarnations that another worker says are dead, and that this worker has not seen in the log.
  HashSet<uint64_t> accused_strangers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
