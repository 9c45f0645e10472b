#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/membership/gone_workers.h"

namespace gradwire::rpc {

// The workers of the group that this worker knows, live and lost. A derived class reports which workers join
// and which are lost. Thread-safe; makes no callbacks.
class PeerTable : public Settlement, public GroupView {
 public:
  // The last worker that had each id, live or lost.
  std::vector<Worker> workers() const { return workers(/*lost_too=*/true); }
  std::vector<Worker> live_workers() const { return workers(/*lost_too=*/false); }
  // Finds a worker by name, by id (`name` empty), or by both. Error: NotFound, which lists the workers of the
  // group.
  absl::StatusOr<std::shared_ptr<Peer>> find(const std::string& name, int32_t id) const;
  // Finds a worker by its incarnation. Errors: NotFound; Aborted if a newer incarnation has its name or id.
  absl::StatusOr<std::shared_ptr<Peer>> find(const Worker& worker) const;
  absl::StatusOr<Worker> find_by_incarnation(uint64_t incarnation) const;
  // Returns nullptr for an incarnation that is not a member, or was lost so long ago that its entry was
  // dropped.
  std::shared_ptr<Peer> peer(uint64_t incarnation) const;
  // OK while the worker is not lost, then the reason of its loss.
  absl::Status status(const Worker& worker) const;
  WorkerState state(const Peer& peer) const { return peer.state(); }

  Standing standing(uint64_t incarnation, std::string* name) const override;
  bool knows_owners(const ReferenceList& references) const override;

  Departures departures(uint64_t incarnation) const override;
  // As Settlement::require(). If it returns false, PeerSink::on_settled() follows.
  bool require(uint64_t incarnation, const Departures& sent) override;
  bool settled(uint64_t incarnation) override;

 protected:
  // Sets the members of the group, including this worker, and the incarnations that were members before.
  // Before this call every worker is a stranger (Standing::kStranger).
  void fill(const Worker& self, const std::vector<WorkerAddress>& workers, const std::vector<Worker>& gone);
  void add(const WorkerAddress& worker);
  // Call when a worker is lost. Of workers that were lost long ago only the incarnation is kept.
  void mark_lost(const Worker& worker);
  void count(AgentTables& tables) const;
  // Makes all peers release their links. Call when this worker ends.
  void clear_links();

  // Set before the first message can arrive. Only the id is set later: by fill(), with the lock held, before
  // any Hello is admitted.
  Worker self_;

 private:
  struct Entry {
    std::shared_ptr<Peer> peer;
    // Whether another incarnation has its name or id now.
    bool superseded = false;
  };

  std::vector<Worker> workers(bool lost_too) const;
  void add_locked(const WorkerAddress& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_stranger_locked(uint64_t incarnation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<int32_t, std::shared_ptr<Peer>> by_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Peer>> by_name_ ABSL_GUARDED_BY(mutex_);
  // The live workers, and the workers in lost_.
  absl::flat_hash_map<uint64_t, Entry> by_incarnation_ ABSL_GUARDED_BY(mutex_);
  // Workers that were lost while this worker was a member, oldest first. The newest GoneWorkers::kMax keep
  // their entry.
  std::deque<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  // The other lost workers, and those that were lost before this worker joined.
  GoneWorkers gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
