#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/proto/membership.pb.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/link/arrivals.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/rpc/metrics/peer_calls.h"

namespace gradwire::rpc {

class Link;

// One worker and the connections with it. It knows which connection new requests use, which messages were
// sent and read on each, and which transports reach the worker. A peer is alive or suspect until lose(),
// which is final.
//
// Thread-safe; makes no callbacks. Shares the ownership of its links until remove() or clear().
struct Peer {
  using Links = std::vector<std::shared_ptr<Link>>;

  // Maximum number of connections with a peer. A worker needs one, and a second one while both ends connect
  // at the same time. Others may have broken without a sign, and remain until a timeout.
  static constexpr std::size_t kMostConnections = 64;

  // `is_self`: the peer is this worker; calls to it come back to this worker.
  Peer(const WorkerAddress& address, bool is_self)
      : worker(address.worker), record(address.record), is_self(is_self) {}

  const Worker worker;
  const proto::WorkerRecord record;
  const bool is_self;
  // Locked by the thread that makes a connection to the peer, so that there is only one and no message
  // overtakes its Hello. Nothing blocks meanwhile: a connection is made before it is established.
  Mutex connecting;
  // Flow control of the calls to this peer. Synchronised by itself.
  FlowWindow flow;
  // The metrics of the calls to this peer. Synchronised by itself.
  PeerCallsHandle made_metrics;

  WorkerState state() const;
  // OK while the peer is not lost, then the reason of its loss.
  absl::Status status() const;
  // The link that new requests use; nullptr if no link is ready. Error: status() if the peer is lost.
  absl::StatusOr<std::shared_ptr<Link>> link() const;

  // Call when a connection was made to the peer. lose() returns it from here on. Error: status() if the peer
  // is lost.
  absl::Status add(const std::shared_ptr<Link>& link);
  // Allocates the number of the connection for this side's Hello.
  uint64_t number(const Link& link);
  // Call when this side's Hello has been sent, and requests may follow it. Error: status() if the peer is
  // lost.
  absl::Status greeted(const std::shared_ptr<Link>& link);
  // Accepts the worker's Hello, in which the connection has this number. `read` counts the messages that are
  // read on it. `reached`: the connection proves that the link's transport reaches the peer. Returns whether
  // the connection replaces a broken one. Errors: Aborted if the peer is lost; ResourceExhausted if it has
  // kMostConnections; Unavailable if the connection has ended at the peer, or the number was used before.
  absl::StatusOr<bool> admit(const std::shared_ptr<Link>& link, uint64_t number,
                             std::shared_ptr<const Arrivals::Counter> read, bool reached);
  // The state after a connection has ended.
  struct Ended {
    bool introduced = false;  // The peer had introduced itself on it.
    bool settled = false;     // Its end has settled all required messages.
    bool reachable = false;   // The peer has introduced itself on another connection.
    bool lost = false;        // The peer is lost.
  };
  Ended remove(const std::shared_ptr<Link>& link);
  // Marks the peer as lost and returns its connections. Returns nullopt if it was lost before.
  std::optional<Links> lose(WorkerState state, const absl::Status& reason);
  struct Loss {
    WorkerState state;
    absl::Status reason;
  };
  // Returns the loss when its consequences are due, and only once. A worker that has left may have sent its
  // last answers just before: its loss is due when no connection on which it has introduced itself is open,
  // or `at_once`. A death is due at once.
  std::optional<Loss> take_loss(bool at_once);
  // Makes the peer suspect or alive. Returns whether this is another state than before; never for a peer that
  // is lost.
  bool set_suspect(bool suspect);
  // The state of the peer at one moment.
  struct View {
    WorkerState state = WorkerState::kAlive;
    absl::Status lost_reason;
    // The open links on which the peer has introduced itself. That of new requests comes first, if there is
    // one.
    Links links;
    bool link_in_use = false;
    std::vector<std::pair<std::string, absl::Status>> given_up;
  };
  View view() const;
  // Releases all links. Call when this worker ends.
  void clear();

  // Input of a heartbeat: the open links, what was sent on them, and whether a connection has ended since the
  // last heartbeat, so that the heartbeat must be sent in any case.
  struct Beat {
    Links links;
    Departures sent;
    bool forced = false;
  };
  Beat beat();

  // As in ArrivalOrder. update_arrivals() and check_settled() return whether all required messages have
  // settled by this call.
  Departures departures() const;
  bool require(const Departures& sent);
  bool update_arrivals(const Departures& sent);
  bool check_settled();
  bool settled();

  // Records that a transport failed, and is not tried again.
  void give_up(const std::string& transport, const absl::Status& reason);
  bool has_given_up(const std::string& transport) const;
  // Whether the transport has reached the peer before.
  bool has_worked(const std::string& transport) const;
  // Returns the transports that were given up since the last call, with the reasons.
  std::vector<std::pair<std::string, absl::Status>> take_given_up();

 private:
  struct Connection {
    std::shared_ptr<Link> link;
    bool made_here = false;
    bool introduced = false;   // The peer's Hello was accepted.
    bool greeted = false;      // This side's Hello was sent: only then may other messages be sent.
    uint64_t own_number = 0;   // The number in this side's Hello; 0 before it.
    uint64_t peer_number = 0;  // The number in the peer's Hello; 0 before it.
  };

  std::vector<Connection>::iterator find_locked(const Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the peer has introduced itself on a connection that is open.
  bool reachable_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool check_settled_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  WorkerState state_ ABSL_GUARDED_BY(mutex_) = WorkerState::kAlive;
  absl::Status lost_reason_ ABSL_GUARDED_BY(mutex_);
  bool loss_taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mutex_);
  // All connections have broken since the last one was admitted.
  bool broke_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // A numbered connection has ended since the last heartbeat.
  bool end_unreported_ ABSL_GUARDED_BY(mutex_) = false;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  // Transports that have reached the peer.
  std::set<std::string> worked_ ABSL_GUARDED_BY(mutex_);
  // Transports that are not tried again, with the reasons.
  std::map<std::string, absl::Status> given_up_ ABSL_GUARDED_BY(mutex_);
  // Transports in given_up_ that take_given_up() has not returned yet.
  std::vector<std::string> unreported_ ABSL_GUARDED_BY(mutex_);

  // Whether required messages have not settled yet: then every thread that has handled a message calls
  // check_settled(). Written with the lock held.
  std::atomic<bool> unsettled_{false};
};

}  // namespace gradwire::rpc
