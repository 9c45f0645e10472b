#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/link/handshake.h"
#include "gradwire/rpc/link/heartbeat_monitor.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer.h"
#include "gradwire/rpc/link/sign_of_life.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// The workers of the group that this worker knows, live and lost. A derived class reports which workers join
// and which are lost. Thread-safe; makes no callbacks.
class PeerTable : public ArrivalOrder, public GroupView {
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
  // As ArrivalOrder::require(). If it returns false, PeerSink::on_settled() follows.
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
  HashMap<std::string, std::shared_ptr<Peer>> by_name_ ABSL_GUARDED_BY(mutex_);
  // The live workers, and the workers in lost_.
  HashMap<uint64_t, Entry> by_incarnation_ ABSL_GUARDED_BY(mutex_);
  // Workers that were lost while this worker was a member, oldest first. The newest GoneWorkers::kMax keep
  // their entry.
  std::deque<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  // The other lost workers, and those that were lost before this worker joined.
  GoneWorkers gone_ ABSL_GUARDED_BY(mutex_);
};

// The other workers of the group and the connections to them. Peers connects on first use, distinguishes a
// broken connection from a dead worker, and passes arriving messages to the sink. Each Link introduces this
// worker and checks the identity of the other side.
//
// The caller supplies the members (set_workers, add_worker, lose). The HeartbeatMonitor finds out which of
// them respond. Peers itself declares a worker lost in two cases: the worker has sent a Goodbye, or its
// process has ended, because an address that is certainly its own refuses connections. About a worker that is
// only silent it asks the sink (PeerSink::on_unresponsive). A loss is final.
//
// Thread-safe. Owned by the agent, which must call shutdown() before it destroys this object.
class Peers : public PeerTable, private Link::Host, private HeartbeatMonitor::Host {
 public:
  using Sink = PeerSink;

  struct Options {
    // Runs connection attempts to peers that do not respond. If null, the timers' thread runs them.
    std::shared_ptr<Executor> executor;
    absl::Duration connect_timeout = absl::Seconds(10);
    HeartbeatOptions heartbeat;
    Limits limits;
    // nullptr: all observers are refused.
    std::shared_ptr<Observers> observers;
    // nullptr: no message is watched.
    std::shared_ptr<TransferWatch> transfers;
    // Empty if the transports have threads of their own. The tasks must end before this object does.
    AfterReading after_reading;
    ReaderState reader_state;
  };
  // `transports`: best first; they include loopback, for calls of this worker to itself.
  Peers(Transports transports, Sink& sink, TimerQueue& timers, const Options& options);
  ~Peers() override;

  // Starts to listen on all transports. Returns this worker's record for the directory.
  absl::StatusOr<proto::WorkerRecord> listen(const Worker& self);
  // Sets the members of the group, including this worker, and the incarnations that were members before.
  // `self` must equal the argument of listen(), except for the id. Messages of earlier connections are
  // handled from here on.
  void set_workers(const Worker& self, const std::vector<WorkerAddress>& workers,
                   const std::vector<Worker>& gone);
  // Adds a worker that has joined after set_workers().
  void add_worker(const WorkerAddress& worker);
  // Records that the worker is dead or has left: from here on calls to it fail. Later calls for the same
  // worker do nothing. PeerSink::on_worker_lost() is called at once for a death. A worker that leaves ends
  // its connections itself, after the answers that it has sent: for it on_worker_lost() is called when they
  // have ended, or after a few seconds.
  void lose(const Worker& worker, WorkerState state, const absl::Status& reason);
  // Asks whether a worker that is not a member yet is alive at the addresses of its record. May block for
  // `timeout` per address.
  Directory::Life check_life(const proto::WorkerRecord& record, absl::Duration timeout) {
    return rpc::check_life(transports_, self_.name, record, timeout);
  }

  // Returns the link for requests to the peer, and connects if necessary. Errors: Unavailable if the worker
  // is lost or cannot be reached; FailedPrecondition after shutdown.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer);

  // Adds the numbers of workers, links and held bytes to `tables`.
  void count(AgentTables& tables) const;

  uint64_t bytes_sent() const { return shared_.bytes_sent.load(); }
  uint64_t bytes_received() const { return shared_.bytes_received.load(); }

  // Sends a Goodbye to all peers, waits up to `flush` until it is sent, then closes all connections and joins
  // the transports' threads. Idempotent.
  void shutdown(const absl::Status& reason, absl::Duration flush);

 private:
  // A way to connect to a peer.
  struct Route {
    transport::Transport* transport;
    const std::string* address;  // One of the addresses in the peer's record.
  };

  std::shared_ptr<transport::ConnectionListener> accept(
      const std::string& transport, const std::shared_ptr<transport::Connection>& connection);
  // The link in use; nullptr if no link is ready. Errors: FailedPrecondition after shutdown, or the reason
  // why the peer is lost.
  absl::StatusOr<std::shared_ptr<Link>> open_link(const Peer& peer) const;
  // The routes that have not been given up, best first.
  std::vector<Route> routes_to(const Peer& peer) const;
  absl::StatusOr<std::shared_ptr<Link>> connect(const Route& route, const std::shared_ptr<Peer>& peer);
  // Handles messages that were held for a change of the group.
  void release_held();
  // Handles the end of a connection on which the peer never introduced itself.
  void attempt_failed(const std::shared_ptr<Peer>& peer, const std::string& transport,
                      const absl::Status& reason);
  void probe(const std::shared_ptr<Peer>& peer);
  // Reports the peer's loss to the sink if it is due (Peer::take_loss). Returns whether it did.
  bool report_loss(const std::shared_ptr<Peer>& peer, bool at_once);

  absl::Status on_made(const std::shared_ptr<Link>& link) override;
  void wait_for_group(const std::shared_ptr<Link>& link) override;
  void on_open(const Link& link, const std::shared_ptr<Peer>& peer, bool restored) override;
  void on_closed(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                 const absl::Status& reason) override;
  void lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason) override;
  std::vector<std::shared_ptr<Link>> links() const override;
  void probe_soon(const std::shared_ptr<Peer>& peer) override;

  const Transports transports_;
  const Options options_;
  Link::Context shared_;
  HeartbeatMonitor monitor_;
  std::atomic<uint64_t> next_link_{1};

  mutable Mutex mutex_;
  CondVar links_changed_;
  HashMap<uint64_t, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Numbers of incoming links whose peer has not introduced itself.
  HashSet<uint64_t> unadmitted_ ABSL_GUARDED_BY(mutex_);
  // Links that hold a message until the group, or its sender in the group, is known.
  std::vector<std::shared_ptr<Link>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
