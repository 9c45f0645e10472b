#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_wire.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/transport.h"

namespace gradwire::collectives::cpu {

// The connections of one rank to the others of its world: finds the ranks in the store, connects when a rank
// is wanted, and lets connections in that say the world's secret. The protocol is mesh_wire.h's.
//
// Between two ranks there are up to two connections: this rank's messages go out on the one that it made, and
// messages come in on the other's. A rank is lost when either ends; what it had sent before may still arrive
// for a moment.
//
// Thread-safe. The observer is called without locks.
class MeshLinks {
 public:
  using ConnectionPtr = std::shared_ptr<transport::Connection>;

  // What the user of the connections is told. The last call of a rank is on_lost().
  class Observer {
   public:
    virtual ~Observer() = default;
    // Messages to the rank go here from now on.
    virtual void on_out(int rank, const ConnectionPtr& connection) = 0;
    // Messages from the rank come here from now on, and answers to them go here.
    virtual void on_in(int rank, const ConnectionPtr& connection) = 0;
    // A frame from the rank, on the connection in or out. An error ends the connection.
    virtual absl::Status on_frame(int rank, bool in, const Frame& frame, transport::Message message) = 0;
    // Nothing can be sent to the rank any more. `reason`: what its name is put before.
    virtual void on_out_closed(int rank, const absl::Status& reason) = 0;
    // Nor does anything come.
    virtual void on_lost(int rank, const absl::Status& reason) = 0;
  };

  // All outlive the links' shutdown().
  MeshLinks(const Mesh::Options& options, Observer& observer, Executor& executor, TimerQueue& timers)
      : options_(options), observer_(observer), executor_(executor), timers_(timers) {
    MutexLock lock(mutex_);
    peers_.resize(static_cast<std::size_t>(options.size));
  }

  // Listens with the transports, and publishes where.
  absl::Status start(std::vector<std::unique_ptr<transport::Transport>> transports);
  // Has a connection to the rank made, unless there is one, or was.
  void want(int rank);
  // Says goodbye and ends everything. No call of the observer comes afterwards.
  void shutdown(const absl::Status& reason);

 private:
  // One connection, and who is at its other end.
  class Link;
  using LinkPtr = std::shared_ptr<Link>;
  struct Peer {
    enum class State { kIdle, kWanted, kConnecting, kOpen };
    State state = State::kIdle;
    absl::Time connect_by;
    // The record that the rank has published, and how many of its addresses have been tried.
    std::string record;
    std::size_t tried = 0;
    std::string failures;
    LinkPtr out;
    LinkPtr in;
    bool lost = false;
  };

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  static std::string key_of(int rank);
  LinkPtr accept(const std::string& transport, const ConnectionPtr& connection);
  absl::Status on_hello(const LinkPtr& link, const Frame& frame, absl::string_view token);
  absl::Status on_welcome(const LinkPtr& link);
  void on_message(const LinkPtr& link, transport::Connection& connection, transport::Message message);
  absl::Status on_frame(const LinkPtr& link, const Frame& frame, transport::Message message);
  void on_closed(const LinkPtr& link, const absl::Status& reason);
  void find_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void find_peers();
  void connect(int rank);
  absl::Status connect_by(transport::Transport& transport, int rank, const std::string& address);
  void lose(int rank, const absl::Status& reason);

  const Mesh::Options& options_;
  Observer& observer_;
  Executor& executor_;
  TimerQueue& timers_;
  // Set once, by start().
  std::string token_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;

  Mutex mutex_;
  CondVar changed_;  // A link ended.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<LinkPtr> links_ ABSL_GUARDED_BY(mutex_);
  int unintroduced_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finding_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::collectives::cpu
