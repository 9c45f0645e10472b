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

// The workers of the group, as far as it is known here, and those who are gone. Whoever derives from it says
// who joins and who is lost. Thread-safe; calls nobody back.
class PeerTable : public Settlement, public GroupView {
 public:
  // The last to have each id, lost or not.
  std::vector<Worker> workers() const { return workers(/*lost_too=*/true); }
  std::vector<Worker> live_workers() const { return workers(/*lost_too=*/false); }
  // By name, by id (name empty), or by both. NotFound lists the workers there are.
  absl::StatusOr<std::shared_ptr<Peer>> find(const std::string& name, int32_t id) const;
  // By its incarnation. Aborted when another has taken its place.
  absl::StatusOr<std::shared_ptr<Peer>> find(const Worker& worker) const;
  absl::StatusOr<Worker> find_by_incarnation(uint64_t incarnation) const;
  // nullptr for an incarnation that is not a member, or was lost long ago.
  std::shared_ptr<Peer> peer(uint64_t incarnation) const;
  // OK while the worker is not lost.
  absl::Status status(const Worker& worker) const;
  WorkerState state(const Peer& peer) const { return peer.state(); }

  Standing standing(uint64_t incarnation, std::string* name) const override;
  bool knows_owners(const ReferenceList& references) const override;

  Departures departures(uint64_t incarnation) const override;
  // Where it returns false, PeerSink::on_settled follows.
  bool require(uint64_t incarnation, const Departures& sent) override;
  bool settled(uint64_t incarnation) override;

 protected:
  // The members of the group, oneself included, and the incarnations that were: before that everybody is a
  // stranger.
  void fill(const Worker& self, const std::vector<WorkerAddress>& workers, const std::vector<Worker>& gone);
  void add(const WorkerAddress& worker);
  // The worker was lost. Those that were lost long ago are forgotten, but that they are gone.
  void bury(const Worker& worker);
  void count(AgentTables& tables) const;
  // At the end of this worker: no peer has a link any more.
  void clear_links();

  // Set before anything can arrive; the id by fill(), before anybody is admitted, and under the lock.
  Worker self_;

 private:
  struct Entry {
    std::shared_ptr<Peer> peer;
    // Another incarnation has taken its name or id.
    bool superseded = false;
  };

  std::vector<Worker> workers(bool lost_too) const;
  void add_locked(const WorkerAddress& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_stranger_locked(uint64_t incarnation) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<int32_t, std::shared_ptr<Peer>> by_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Peer>> by_name_ ABSL_GUARDED_BY(mutex_);
  // Those who live and those in lost_.
  absl::flat_hash_map<uint64_t, Entry> by_incarnation_ ABSL_GUARDED_BY(mutex_);
  // Lost while they were members, the oldest first: GoneWorkers::kMax of them are kept whole.
  std::deque<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  // The others, and those that were lost before this worker joined.
  GoneWorkers gone_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
