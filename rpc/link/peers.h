#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/membership/directory.h"
#include "gradwire/rpc/membership/failure_detector.h"
#include "gradwire/rpc/membership/gone_workers.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/rpc/worker_state.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/transport.h"

namespace gradwire::rpc {

class Link;
struct Peer;
struct HeldMessage;

// The other workers of the group and the connections to them. Connects on first use, introduces itself and
// checks who the other side is, tells a broken connection from a dead worker, and hands what arrives to the
// Sink.
//
// Who is a member comes from outside (set_workers, add_worker, lose). Here is found out who answers: FailureDetector
// decides, with the heartbeats that go over every connection. A worker whose process has ended is lost at once, by its
// own goodbye or because what is certainly its host refuses connections; about one that is only silent the Sink is
// asked. Lost is for good.
//
// Thread-safe. Owned by the agent; shutdown() before destruction.
class Peers : public Settlement {
 public:
  // Hears of everything, on the transport's threads or a timer's. Must not block.
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
    // There is a connection again after one had broken.
    virtual void on_link_restored(const Worker& peer) = 0;
    // Everything that require() was told of, of this peer, has been handled: ask settled(), which may be false again.
    virtual void on_settled(const Worker& peer) = 0;
    // kAlive or kSuspect, when that changes.
    virtual void on_worker_state(const Worker& peer, WorkerState state) = 0;
    // Silent for longer than HeartbeatOptions::dead_after; again and again while that is so.
    virtual void on_unresponsive(const Worker& peer, const absl::Status& reason) = 0;
    // Once for each worker; kDead or kLeft.
    virtual void on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) = 0;
  };

  struct Options {
    // Where connections are made to those who do not answer: it may take its time. Without one, the timers' thread.
    std::shared_ptr<Executor> executor;
    absl::Duration connect_timeout = absl::Seconds(10);
    HeartbeatOptions heartbeat;
    Limits limits;
  };
  // `transports`, best first; loopback, for calls to oneself, is among them.
  Peers(std::vector<std::unique_ptr<transport::Transport>> transports, Sink& sink, TimerQueue& timers,
        const Options& options);
  ~Peers() override;

  // Starts to listen; returns this worker's record for the directory.
  absl::StatusOr<proto::WorkerRecord> listen(const Worker& self);
  // The members of the group, oneself included, and the incarnations that were. `self`: as it was given to listen(), but
  // for the id. Connections that came in earlier are served from here on.
  void set_workers(const Worker& self, const std::vector<WorkerAddress>& workers,
                   const std::vector<Worker>& gone);
  // A worker that has joined since.
  void add_worker(const WorkerAddress& worker);
  // The worker is dead, or has left. Does nothing the second time.
  void lose(const Worker& worker, WorkerState state, const absl::Status& reason);
  // Whether somebody listens where a worker that is no member here said so.
  Directory::Life look_for(const proto::WorkerRecord& record, absl::Duration patience);

  // The last to have each id, lost or not.
  std::vector<Worker> workers() const;
  std::vector<Worker> live_workers() const;
  // By name, by id (name empty), or by both. NotFound lists the workers there are.
  absl::StatusOr<std::shared_ptr<Peer>> find(const std::string& name, int32_t id) const;
  // By its incarnation. Aborted when another has taken its place.
  absl::StatusOr<std::shared_ptr<Peer>> find(const Worker& worker) const;
  absl::StatusOr<Worker> find_by_incarnation(uint64_t incarnation) const;
  // OK while the worker is not lost.
  absl::Status status(const Worker& worker) const;
  WorkerState state(const Peer& peer) const;

  // The link that requests to the peer go on; made if there is none. Unavailable when the worker is lost,
  // FailedPrecondition after shutdown.
  absl::StatusOr<std::shared_ptr<Link>> link_to(const std::shared_ptr<Peer>& peer);

  // What this worker has sent to another until now: everything that was sent before this was called, and maybe more.
  Departures departures(uint64_t incarnation) const override;
  // `sent`: what the other says in a message that is being handled. True when all that it sent before that message has
  // been handled or never will be. Else Sink::on_settled follows.
  bool require(uint64_t incarnation, const Departures& sent) override;
  // Nothing that require() was told of is still to come.
  bool settled(uint64_t incarnation) override;

  // What is known and held here.
  void count(AgentTables& tables) const;

  uint64_t bytes_sent() const { return bytes_sent_.load(); }
  uint64_t bytes_received() const { return bytes_received_.load(); }

  // Says goodbye to all, flushing for at most `flush`, closes everything and joins. Idempotent.
  void shutdown(const absl::Status& reason, absl::Duration flush);

 private:
  friend class Link;

  // How to connect to a peer.
  struct Way {
    transport::Transport* transport;
    const std::string* address;  // Of the peer's record.
  };

  // peers.cc: who there is, and how to reach him.
  std::shared_ptr<transport::ConnectionListener> accept(
      const std::string& transport, const std::shared_ptr<transport::Connection>& connection);
  void add_worker_locked(const WorkerAddress& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The link in use; nullptr when there is none. FailedPrecondition, or why the peer is lost.
  absl::StatusOr<std::shared_ptr<Link>> open_link(const std::shared_ptr<Peer>& peer) const;
  // The ways that are left, best first.
  std::vector<Way> ways_to(const Peer& peer) const;
  // Leaves a transport that failed to a peer for the next.
  void give_up(Peer& peer, const std::string& transport, const absl::Status& reason);
  // Writes one line into the log for each transport that was given up, once another has reached the peer. Before that the
  // peer may as well have left or died, which is not the transport's fault.
  void report_given_up(Peer& peer);
  absl::StatusOr<std::shared_ptr<Link>> connect(transport::Transport& transport, const std::string& address,
                                                const std::shared_ptr<Peer>& peer);
  void introduce(const std::shared_ptr<Link>& link, const std::shared_ptr<Peer>& peer,
                 uint64_t to_incarnation);

  // link.cc: what arrives on a link, and its end.
  void handle(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
              std::vector<transport::Buffer> buffers);
  // Takes a message that follows a Hello which waits. False for any other; then nothing was moved.
  bool hold_unread(const std::shared_ptr<Link>& link, transport::Message& message);
  void dispatch(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                std::vector<transport::Buffer> buffers);
  // Whether a Hello is of somebody who may be about to be known.
  bool is_stranger_locked(const proto::Envelope& envelope) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it carries references whose owner may be about to be known.
  bool names_stranger_locked(const proto::Envelope& envelope) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a message that came on the link must wait for the log.
  bool must_wait_locked(const Link& link, const proto::Envelope& envelope) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues a message that must wait; `message.bytes` counts what its envelope takes. False when that would be over the
  // limits; then it is dropped.
  bool hold_locked(Link& link, HeldMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status held_too_much() const;
  // Every change of what is held on a link.
  void count_held_locked(Link& link, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::deque<HeldMessage> drop_held_locked(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: it is no envelope, and the connection ends.
  bool read_held(const std::shared_ptr<Link>& link, HeldMessage& message);
  // What waits for the log to tell of a worker that it names does so for a bounded time.
  void limit_wait_locked(const std::shared_ptr<Link>& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool leads_back_locked(const Link& link, const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of those who were lost long ago.
  void forget_lost_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What waited for the directory.
  void release_held();
  // Hands what follows a Hello to the sink. False for what does not; then nothing was moved.
  bool deliver(const Peer& peer, Link& link, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers);
  // The message that a link brought has been handled.
  void count_read(Link& link, const Peer& peer);
  void note_heartbeat(const Peer& peer, const proto::Heartbeat& heartbeat);
  // Whether something that was unsettled is settled now: then the sink hears of it.
  bool settles_locked(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Departures departures_locked(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status admit(const proto::Hello& hello, const std::shared_ptr<Link>& link);
  void leave(const std::shared_ptr<Link>& link, const proto::Goodbye& goodbye);
  void refuse(const std::shared_ptr<Link>& link, const absl::Status& reason);
  void on_closed(const std::shared_ptr<Link>& link, const absl::Status& reason);
  std::shared_ptr<Link> another_link_locked(const Peer& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // peers_watch.cc: who answers.
  void lose(const std::shared_ptr<Peer>& peer, WorkerState state, absl::Status reason);
  // Tells the detector, and does what it says.
  void watch(absl::FunctionRef<void(FailureDetector&, absl::Time, FailureDetector::Actions&)> event,
             const absl::Status& why);
  // The same about one peer, unless that is lost.
  void watch(const Peer& peer,
             void (FailureDetector::*event)(uint64_t, absl::Time, FailureDetector::Actions&),
             const absl::Status& why);
  void attempt_failed(const std::shared_ptr<Peer>& peer, const std::string& transport,
                      const absl::Status& reason);
  void on_tick();
  void probe_soon(const std::shared_ptr<Peer>& peer);
  void probe(const std::shared_ptr<Peer>& peer);
  void send_heartbeat(const std::shared_ptr<Peer>& peer);

  const std::vector<std::unique_ptr<transport::Transport>> transports_;
  Sink& sink_;
  TimerQueue& timers_;
  const Options options_;
  // Set by listen(), before anything can arrive; the id by set_workers(), before anybody is admitted.
  Worker self_;

  mutable Mutex mutex_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_link_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int32_t, std::shared_ptr<Peer>> peers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Peer>> by_name_ ABSL_GUARDED_BY(mutex_);
  // Those who live and those in lost_.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Peer>> by_incarnation_ ABSL_GUARDED_BY(mutex_);
  // Lost while they were members, the oldest first: GoneWorkers::kMax of them are kept whole.
  std::deque<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  // The others, and those that were lost before this worker joined.
  GoneWorkers gone_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  // Links on which something arrived before the directory was known, or told of the one who sent it.
  std::vector<std::shared_ptr<Link>> held_ ABSL_GUARDED_BY(mutex_);
  CondVar links_changed_;
  // Connections in links_ that came in and whose other end has not said who it is.
  std::size_t unadmitted_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of all links.
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  FailureDetector detector_ ABSL_GUARDED_BY(mutex_);
  absl::Time tick_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();

  std::atomic<uint64_t> bytes_sent_{0};
  std::atomic<uint64_t> bytes_received_{0};
};

}  // namespace gradwire::rpc
