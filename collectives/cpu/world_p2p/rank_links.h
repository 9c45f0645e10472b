#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/transport.h"

namespace gradwire::collectives::cpu {

// The connections of one rank to the others of its world. It finds the ranks in the store, connects when a
// connection is requested, and accepts connections that present the world's secret. The protocol is described
// in p2p_wire.h.
//
// Between two ranks there are up to two connections: this rank sends on the one that it made, and receives on
// the one that the other rank made. A rank is lost when either is closed, or when it cannot be reached;
// messages that it had sent before may still arrive for a moment.
//
// Thread-safe. The observer is called without locks.
class RankLinks {
 public:
  using ConnectionPtr = std::shared_ptr<transport::Connection>;

  // Receives the events of the connections. The last call for a rank is on_lost().
  class Observer {
   public:
    virtual ~Observer() = default;
    // The connection for messages to the rank is open.
    virtual void on_out(int rank, const ConnectionPtr& connection) = 0;
    // The connection for messages from the rank is open. Answers to them are sent on it, too.
    virtual void on_in(int rank, const ConnectionPtr& connection) = 0;
    // A frame of the rank has arrived on the connection in or out. An error closes the connection.
    virtual absl::Status on_frame(int rank, bool in, const Frame& frame, transport::Message message) = 0;
    // Nothing can be sent to the rank any more. `reason` continues the rank's name in the error, for example
    // "has left".
    virtual void on_out_closed(int rank, const absl::Status& reason) = 0;
    // Nothing arrives from the rank any more either.
    virtual void on_lost(int rank, const absl::Status& reason) = 0;
  };

  // All arguments must be valid until shutdown() has returned.
  RankLinks(const WorldP2p::Options& options, Observer& observer, Executor& executor, TimerQueue& timers)
      : options_(options), observer_(observer), executor_(executor), timers_(timers) {
    MutexLock lock(mutex_);
    peers_.resize(static_cast<std::size_t>(options.size));
  }

  // Listens with the transports, and publishes the addresses.
  absl::Status start(std::vector<std::unique_ptr<transport::Transport>> transports);
  // Connects to the rank in the background, unless there is or was a connection.
  void request_connection(int rank);
  // Sends kGoodbye and closes all connections. The observer is not called afterwards.
  void shutdown(const absl::Status& reason);

 private:
  // One connection, and the rank at its other end.
  class Link;
  using LinkPtr = std::shared_ptr<Link>;
  struct Peer {
    enum class State { kIdle, kWanted, kPaused, kConnecting, kOpen, kClosed };
    State state = State::kIdle;
    absl::Time connect_by;
    // The record that the rank has published, and the number of its addresses that have been tried.
    std::string record;
    std::size_t tried = 0;
    std::string failures;
    // This rank had no descriptor or memory left for one of the attempts.
    bool shortage = false;
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
  // After all addresses have failed: if this rank's own shortage was a cause, tries them again a little
  // later. Returns false if the time to connect is over.
  bool try_again(int rank);
  absl::Status connect_by(transport::Transport& transport, int rank, const std::string& address);
  void end_sends(int rank, const absl::Status& reason);
  void lose(int rank, const absl::Status& reason);

  const WorldP2p::Options& options_;
  Observer& observer_;
  Executor& executor_;
  TimerQueue& timers_;
  // Set once, by start().
  std::string token_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;

  Mutex mutex_;
  CondVar changed_;  // Notified when a link has ended.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  HashSet<LinkPtr> links_ ABSL_GUARDED_BY(mutex_);
  int unintroduced_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finding_peers_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradwire::collectives::cpu
