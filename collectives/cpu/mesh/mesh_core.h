#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/cpu/mesh/matcher.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_books.h"
#include "gradwire/collectives/cpu/mesh/mesh_link.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::collectives::cpu {

// What is behind a Mesh: operations under way, and the connections that they need. The protocol is mesh_wire.h's.
//
// A message to a rank waits until the connection that is made for it stands, leaves at once when it is short, and is
// announced else. Memory of a caller is used by one thread at a time, which has set the operation kBusy; who wants to end
// the operation meanwhile leaves the reason there (`ended`), and the thread that is busy completes it.
//
// Locks: mutex_ is held while books are kept, never while something is sent, copied or completed.
class MeshCore : public std::enable_shared_from_this<MeshCore> {
 public:
  explicit MeshCore(Mesh::Options options);
  ~MeshCore();

  // mesh_core.cc
  absl::Status start();
  void shutdown();
  void abort(uint64_t channel, const absl::Status& reason);
  void forget(uint64_t channel);
  void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names);
  const std::shared_ptr<ThreadPool>& executor() const { return executor_; }

  // mesh_send.cc
  Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline);
  // mesh_receive.cc
  Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline);

 private:
  friend class MeshLink;

  using Send = MeshSend;
  using Receive = MeshReceive;
  using Peer = MeshPeer;
  // Tells when the transport has let go of the data of a message.
  class Leaving;

  // What is to be done of a Matcher's actions, when mutex_ has been released.
  struct Todo {
    Matcher::Action action;
    std::shared_ptr<Receive> receive;
    std::shared_ptr<MeshLink> link;
  };
  using Todos = absl::InlinedVector<Todo, 2>;

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  absl::Status check(int rank, Span data) const;
  // How errors of the channel name the rank.
  std::string name_of(uint64_t channel, int rank);
  // When an operation with this deadline is to be looked at.
  void watch_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire();
  void end_channel(uint64_t channel, const absl::Status& reason, bool forget);

  // ---- Sending (mesh_send.cc, mesh_announce.cc).

  absl::Status check_open_locked(int dst, uint64_t channel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t add_send_locked(const std::shared_ptr<Send>& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a message of this size may go at once; then it counts.
  bool take_window_locked(Peer& peer, std::size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether it may be announced; then it counts, until settle_locked().
  bool take_announcement_locked(Send& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void settle_locked(Send& send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Future<void> send_to_self(uint64_t channel, int64_t tag, Span data, absl::Time deadline);
  // Sends all that waits for the connection.
  void flush_queue(const std::shared_ptr<MeshLink>& link);
  // Afterwards the data is the caller's again.
  absl::Status send_eager(MeshLink& link, uint64_t channel, int64_t tag, Span data);
  // REQUIRES of these: `send` is busy with this thread.
  void announce(uint64_t id, const std::shared_ptr<Send>& send);
  // Of a message that was asked for, or that goes at once.
  void send_data(uint64_t id, const std::shared_ptr<Send>& send);
  void complete(uint64_t id, const std::shared_ptr<Send>& send, absl::Status status);
  // Ends it with `status`, now or when whoever is busy with it is done.
  void end_send(uint64_t id, absl::Status status);
  void cancel_send(uint64_t id);
  void on_ask(int from, uint64_t id);
  void on_refuse(int from, uint64_t id, absl::StatusCode code, uint64_t size);
  void on_left(uint64_t id);

  // ---- Receiving (mesh_receive.cc).

  void on_message(const std::shared_ptr<MeshLink>& link, transport::Connection& connection,
                  transport::Message message);
  // What the sender of a connection, and its receiver, say.
  absl::Status hear_sender(const std::shared_ptr<MeshLink>& link, const Frame& frame,
                           transport::Message message);
  absl::Status hear_receiver(const std::shared_ptr<MeshLink>& link, const Frame& frame);
  Todos take_locked(Matcher::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(Todos todos);
  void finish_receive(Receive& receive, absl::StatusOr<int> result);
  // Ends it, unless it is done or about to be.
  void end_receive(uint64_t id, absl::Status status);
  void cancel_receive(Receive& receive);
  void send_to_own_receive(uint64_t id);

  // ---- Connections (mesh_links.cc).

  std::shared_ptr<transport::ConnectionListener> accept(
      const std::string& transport, const std::shared_ptr<transport::Connection>& connection);
  // Ends a connection that has not said who it is by then, or says much else.
  void watch_stranger_locked(MeshLink& link, absl::Time hello_by) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status on_hello(const std::shared_ptr<MeshLink>& link, const Frame& frame, absl::string_view token);
  void want_locked(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void find_peers();
  void connect(int rank);
  absl::Status connect_by(transport::Transport& transport, int rank, const std::string& address);
  void on_closed(const std::shared_ptr<MeshLink>& link, const absl::Status& reason);
  // Nothing can be sent to the rank any more; what it has sent may still come. Of these `reason` is what the rank's name is
  // put before, as "has left".
  void fail_sends(int rank, const absl::Status& reason);
  // Nor does anything come.
  void lose(int rank, const absl::Status& reason);
  static std::string key_of(int rank);
  absl::Status make_transports();
  absl::Status join_world();

  // Set once.
  const Mesh::Options options_;
  std::string token_;
  std::shared_ptr<transport::EventLoop> loop_;
  std::shared_ptr<ThreadPool> executor_;
  std::unique_ptr<TimerQueue> timers_;
  std::vector<std::unique_ptr<transport::Transport>> transports_;

  Mutex mutex_;
  CondVar changed_;  // An operation that was busy is not; a link ended.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Matcher matcher_ ABSL_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Send>> sends_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Receive>> receives_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::shared_ptr<MeshLink>> links_ ABSL_GUARDED_BY(mutex_);
  int unintroduced_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finding_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();

  std::once_flag shut_down_;
};

}  // namespace gradwire::collectives::cpu
