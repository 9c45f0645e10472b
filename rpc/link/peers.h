#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/link/heartbeat_monitor.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peer_table.h"
#include "gradwire/rpc/link/sign_of_life.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

// The other workers of the group and the connections to them. Connects on first use, distinguishes a broken
// connection from a dead worker, and hands messages that arrive to the Sink. Each Link introduces itself and
// checks the identity of the other side.
//
// The members come from outside (set_workers, add_worker, lose). The HeartbeatMonitor finds out which of them
// answer. A worker whose process has ended is lost at once, by its own goodbye or because what is certainly
// its host refuses connections; about one that is only silent the Sink is asked. A loss is final.
//
// Thread-safe. Owned by the agent; shutdown() before destruction.
class Peers : public PeerTable, private Link::Host, private HeartbeatMonitor::Host {
 public:
  using Sink = PeerSink;

  struct Options {
    // Where connections are made to those who do not answer: it may take its time. Without one, the timers'
    // thread.
    std::shared_ptr<Executor> executor;
    absl::Duration connect_timeout = absl::Seconds(10);
    HeartbeatOptions heartbeat;
    Limits limits;
  };
  // `transports`, best first; loopback, for calls to oneself, is among them.
  Peers(Transports transports, Sink& sink, TimerQueue& timers, const Options& options);
  ~Peers() override;

  // Starts to listen; returns this worker's record for the directory.
  absl::StatusOr<proto::WorkerRecord> listen(const Worker& self);
  // The members of the group, oneself included, and the incarnations that were. `self`: as it was given to
  // listen(), but for the id. Connections that came in earlier are served from here on.
  void set_workers(const Worker& self, const std::vector<WorkerAddress>& workers,
                   const std::vector<Worker>& gone);
  // A worker that has joined since.
  void add_worker(const WorkerAddress& worker);
  // The worker is dead, or has left. Does nothing the second time.
  void lose(const Worker& worker, WorkerState state, const absl::Status& reason);
  // Whether a process listens at the address of a worker that is not a member here.
  Directory::Life look_for(const proto::WorkerRecord& record, absl::Duration timeout) {
    return rpc::look_for(transports_, self_.name, record, timeout);
  }

  // The link that requests to the peer go on; made if necessary. Unavailable when the worker is lost,
  // FailedPrecondition after shutdown.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer);

  // Counts the workers and links that are known here, and the messages that are held.
  void count(AgentTables& tables) const;

  uint64_t bytes_sent() const { return shared_.bytes_sent.load(); }
  uint64_t bytes_received() const { return shared_.bytes_received.load(); }

  // Says goodbye to all, flushing for at most `flush`, closes everything and joins. Idempotent.
  void shutdown(const absl::Status& reason, absl::Duration flush);

 private:
  // How to connect to a peer.
  struct Way {
    transport::Transport* transport;
    const std::string* address;  // An address of the peer's record.
  };

  std::shared_ptr<transport::ConnectionListener> accept(
      const std::string& transport, const std::shared_ptr<transport::Connection>& connection);
  // The link in use; nullptr without one. FailedPrecondition, or why the peer is lost.
  absl::StatusOr<std::shared_ptr<Link>> open_link(const Peer& peer) const;
  // The ways that are left, best first.
  std::vector<Way> ways_to(const Peer& peer) const;
  absl::StatusOr<std::shared_ptr<Link>> connect(const Way& way, const std::shared_ptr<Peer>& peer);
  // Handles what waited for the group to change.
  void release_held();
  // A connection to somebody ended before it had introduced itself.
  void attempt_failed(const std::shared_ptr<Peer>& peer, const std::string& transport,
                      const absl::Status& reason);
  void probe(const std::shared_ptr<Peer>& peer);

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
  absl::flat_hash_map<uint64_t, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Incoming links whose other end has not introduced itself.
  absl::flat_hash_set<uint64_t> unadmitted_ ABSL_GUARDED_BY(mutex_);
  // Links on which a message arrived before the group was known, or before the sender was known in it.
  std::vector<std::shared_ptr<Link>> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
