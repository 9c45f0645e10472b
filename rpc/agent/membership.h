#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/agent/runtime.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/membership/worker_changes.h"
#include "gradwire/rpc/rref/reference_driver.h"

namespace gradwire::rpc {

// How an agent learns who is in the group and who has gone, and what follows.
//
// A loss and an agreed death differ. A worker is lost as soon as this one knows that it is dead or has left:
// calls to it end, its own are dropped, and its messages are refused. The group agrees on the death when the
// log says so: only then it is certain which workers must be asked before references that the dead one had
// are released. A worker that cannot reach the store never agrees alone: others may reach it and join. So
// what it keeps for the dead stays until it has read the log again.
//
// Thread-safe. The agent owns it; what it is given outlives it.
class Membership : public Directory::Listener {
 public:
  Membership(AgentRuntime& runtime, Peers& peers, ReferenceDriver& references);

  // Joins the group, sets the id of this worker, and follows the log from there on.
  absl::Status join(std::shared_ptr<store::Store> store, int rank, int world_size);
  // Leaves the group, if it was joined. No news of the group comes afterwards.
  void stop(const absl::Status& reason);

  // An open group: workers come and go.
  bool is_open() const { return world_size_ == 0; }
  // Waits, no longer than `timeout`, until a worker of that name is a member.
  absl::StatusOr<WorkerInfo> wait_for_worker(const std::string& name, absl::Duration timeout);
  // The store cannot be reached: nobody joins, and this worker decides alone whom it loses.
  bool without_store() const;
  // All members have agreed to stop: departures are expected and not reported.
  void begin_ending();
  bool ending() const;

  // Takes what Peers reports of a worker.
  void worker_unresponsive(const Worker& peer, const absl::Status& reason);
  void worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason);
  // Another worker says that this incarnation is dead.
  void worker_accused(uint64_t incarnation);

  // Directory::Listener
  void on_joined(const WorkerAddress& worker) override;
  void on_left(const Worker& worker) override;
  void on_died(const Worker& worker, const std::string& by, const std::string& reason) override;
  void on_store_lost(const absl::Status& reason) override;
  void on_store_back() override;

  WorkerChanges& changes() { return changes_; }
  // nullptr before join().
  Directory* directory() const { return directory_.get(); }
  void count(AgentTables& tables) const;

 private:
  // The log has the worker's end.
  void agree(uint64_t incarnation);

  AgentRuntime& runtime_;
  Peers& peers_;
  ReferenceDriver& references_;
  // Set by join().
  std::unique_ptr<Directory> directory_;
  int world_size_ = 0;
  // Synchronised by itself.
  WorkerChanges changes_;

  mutable Mutex mutex_;
  bool store_lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // Incarnations that another worker calls dead and that the log has not named here.
  absl::flat_hash_set<uint64_t> accused_strangers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
