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
#include "gradwire/rpc/link/arrivals.h"
#include "gradwire/rpc/link/flow_window.h"
#include "gradwire/rpc/membership/joining.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Link;

// One worker and the connections with it: which of them new requests use, what was sent and read on them, and
// which transports reach it. Alive or suspect until lose(), which is for good.
//
// Thread-safe; calls nobody back. Shares the ownership of its links until remove() or clear().
struct Peer {
  using Links = std::vector<std::shared_ptr<Link>>;

  // `is_self`: calls to it come back to this worker.
  Peer(const WorkerAddress& address, bool is_self)
      : worker(address.worker), record(address.record), is_self(is_self) {}

  const Worker worker;
  const proto::WorkerRecord record;
  const bool is_self;
  // Held by the one who makes a connection to it, so that there is one and nothing overtakes its Hello.
  Mutex connecting;
  // The window of the calls that go to it. Synchronised by itself.
  FlowWindow flow;

  WorkerState state() const;
  // OK while it is not lost; then why it is.
  absl::Status status() const;
  // The link that new requests use; nullptr without one. status() when the worker is lost.
  absl::StatusOr<std::shared_ptr<Link>> link() const;

  // A connection was made to it. From here on lose() names it. status() when it is lost already.
  absl::Status add(const std::shared_ptr<Link>& link);
  // The number of the connection in this side's Hello.
  uint64_t number(const Link& link);
  // This side's Hello has been sent, and requests may follow it. Returns status().
  absl::Status greeted(const std::shared_ptr<Link>& link);
  // The worker's Hello, in which the connection has this number, is accepted; `read` counts what is read on
  // it. `reached`: this shows that the link's transport leads there. Returns whether a broken connection is
  // replaced. Errors: Aborted when the worker is lost; Unavailable when nothing can come on this connection
  // any more.
  absl::StatusOr<bool> admit(const std::shared_ptr<Link>& link, uint64_t number,
                             std::shared_ptr<const Arrivals::Counter> read, bool reached);
  // The connection has ended.
  struct Ended {
    bool introduced = false;  // The worker had introduced itself on it.
    bool settled = false;     // The messages that were awaited have settled thereby.
    bool reachable = false;   // The worker has introduced itself on another.
    bool lost = false;
  };
  Ended remove(const std::shared_ptr<Link>& link);
  // It is lost, and what it still has of connections is returned. Nothing when it was lost before.
  std::optional<Links> lose(WorkerState state, const absl::Status& reason);
  void set_suspect(bool suspect);
  // Whether it has introduced itself on a connection that stands.
  bool is_connected() const;
  // At the end of this worker.
  void clear();

  // For a heartbeat: the open links, what was sent, and whether a connection has ended since the last
  // heartbeat.
  struct Beat {
    Links links;
    Departures sent;
    bool news = false;
  };
  Beat beat();

  // As Settlement's. told() and settles() return whether the wait has ended by that.
  Departures departures() const;
  bool require(const Departures& sent);
  bool told(const Departures& sent);
  bool settles();
  bool settled();

  // A transport failed, and is not tried again.
  void give_up(const std::string& transport, const absl::Status& reason);
  bool has_given_up(const std::string& transport) const;
  // Whether the worker was reached by it.
  bool has_worked(const std::string& transport) const;
  // The transports that were given up since the last call, with the reasons.
  std::vector<std::pair<std::string, absl::Status>> take_given_up();

 private:
  struct Connection {
    std::shared_ptr<Link> link;
    bool made_here = false;
    bool introduced = false;  // Its Hello was accepted.
    bool greeted = false;     // This side's has been sent: only then may anything else be.
    uint64_t departs_as = 0;  // The number in this side's Hello; 0 before.
    uint64_t arrives_as = 0;  // The number in its Hello; 0 before.
  };

  std::vector<Connection>::iterator find_locked(const Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool settles_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  WorkerState state_ ABSL_GUARDED_BY(mutex_) = WorkerState::kAlive;
  absl::Status lost_reason_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mutex_);
  // A connection has ended since the last one came.
  bool broke_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // A numbered connection has ended since the last heartbeat.
  bool untold_ ABSL_GUARDED_BY(mutex_) = false;
  Arrivals arrivals_ ABSL_GUARDED_BY(mutex_);
  // By transport.
  std::set<std::string> worked_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> given_up_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> unreported_ ABSL_GUARDED_BY(mutex_);

  // Not everything that arrivals_ remembers has settled: whoever reads a message asks again. Written under
  // the lock.
  std::atomic<bool> unsettled_{false};
};

}  // namespace gradwire::rpc
