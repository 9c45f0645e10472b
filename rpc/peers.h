#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/timer_queue.h"
#include "proto/membership.pb.h"
#include "rpc/directory.h"
#include "rpc/envelope.h"
#include "rpc/worker.h"
#include "transport/transport.h"

namespace gradwire::rpc {

class Link;
struct Peer;

// The other workers of the group and the connections to them. Connects on first use, introduces itself and
// checks who the other side is, tells a broken connection from a dead worker, and hands what arrives to the
// Sink.
//
// A worker is alive until its connection ends unasked; then it is looked for again at once, and after kProbes
// failed attempts it is lost: for good, even if it should come back (Unavailable). One that says Goodbye is
// lost at once.
//
// Thread-safe. Owned by the agent; shutdown() before destruction.
class Peers {
 public:
  // Hears of everything, on the transport's threads. Must not block.
  class Sink {
   public:
    virtual ~Sink() = default;
    // `link` is where an answer goes.
    virtual void on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                            std::vector<transport::Buffer> buffers) = 0;
    virtual void on_response(const Worker& from, EnvelopePtr envelope,
                             std::vector<transport::Buffer> buffers) = 0;
    virtual void on_cancel(const Worker& from, uint64_t link, uint64_t call_id) = 0;
    // What was under way on the link is gone.
    virtual void on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) = 0;
    // Once for each worker.
    virtual void on_worker_lost(const Worker& peer, const absl::Status& reason) = 0;
  };

  // `transports`, best first; loopback, for calls to oneself, is among them.
  Peers(std::vector<std::unique_ptr<transport::Transport>> transports, Sink& sink, TimerQueue& timers,
        absl::Duration connect_timeout);
  ~Peers();

  // Starts to listen; returns this worker's record for the directory.
  absl::StatusOr<proto::WorkerRecord> listen(const Worker& self);
  // The members of the group, oneself included. Connections that came in earlier are served from here on.
  void set_workers(const std::vector<WorkerAddress>& workers);

  std::vector<Worker> workers() const;
  // By name, by id (name empty), or by both. NotFound lists the workers there are.
  absl::StatusOr<std::shared_ptr<Peer>> find(const std::string& name, int32_t id) const;
  absl::StatusOr<std::shared_ptr<Peer>> find(const Worker& worker) const;
  absl::StatusOr<Worker> find_by_incarnation(uint64_t incarnation) const;
  // OK while the worker is not lost.
  absl::Status status(const Worker& worker) const;

  // The link that requests to the peer go on; made if there is none. Unavailable when the worker is lost,
  // FailedPrecondition after shutdown.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer);

  uint64_t bytes_sent() const { return bytes_sent_.load(); }
  uint64_t bytes_received() const { return bytes_received_.load(); }

  // Says goodbye to all, flushing for at most `flush`, closes everything and joins. Idempotent.
  void shutdown(const absl::Status& reason, absl::Duration flush);

 private:
  friend class Link;
  static constexpr int kProbes = 3;

  // How to connect to a peer.
  struct Way {
    transport::Transport* transport;
    const std::string* address;  // Of the peer's record.
  };

  std::shared_ptr<transport::ConnectionListener> accept(
      const std::shared_ptr<transport::Connection>& connection);
  // The link in use; nullptr when there is none. FailedPrecondition, or why the peer is lost.
  absl::StatusOr<std::shared_ptr<Link>> open_link(const std::shared_ptr<Peer>& peer) const;
  // The ways that are left, best first.
  std::vector<Way> ways_to(const Peer& peer) const;
  // Leaves a transport that failed to a peer for the next, with one line in the log.
  void give_up(Peer& peer, const std::string& transport, const absl::Status& reason);
  absl::StatusOr<std::shared_ptr<Link>> connect(transport::Transport& transport, const std::string& address,
                                                const std::shared_ptr<Peer>& peer);
  absl::Status admit(const proto::Hello& hello, const std::shared_ptr<Link>& link);
  void handle(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
              std::vector<transport::Buffer> buffers);
  void dispatch(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                std::vector<transport::Buffer> buffers);
  // Hands what follows a Hello to the sink. False for what does not; then nothing was moved.
  bool deliver(const Peer& peer, Link& link, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers);
  void leave(const std::shared_ptr<Link>& link, const proto::Goodbye& goodbye);
  void on_closed(const std::shared_ptr<Link>& link, const absl::Status& reason);
  void suspect(const std::shared_ptr<Peer>& peer, const absl::Status& reason);
  void probe(const std::shared_ptr<Peer>& peer);
  void lose(const std::shared_ptr<Peer>& peer, absl::Status reason);
  void introduce(Link& link, uint64_t to_incarnation);
  void refuse(const std::shared_ptr<Link>& link, const absl::Status& reason);

  const std::vector<std::unique_ptr<transport::Transport>> transports_;
  Sink& sink_;
  TimerQueue& timers_;
  const absl::Duration connect_timeout_;
  Worker self_;  // Set once, by listen(), before anything can arrive.

  mutable Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_link_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int32_t, std::shared_ptr<Peer>> peers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Peer>> by_name_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Links on which something arrived before the directory was known.
  std::vector<std::shared_ptr<Link>> held_ ABSL_GUARDED_BY(mutex_);
  CondVar links_changed_;

  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
};

}  // namespace gradwire::rpc
