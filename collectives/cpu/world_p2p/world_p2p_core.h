#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/cpu/bytes/span.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/collectives/cpu/world_p2p/rank_links.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::collectives::cpu {

// The implementation of WorldP2p: an Endpoint whose carrier is the connections of RankLinks.
//
// One thread at a time empties the outbox of a rank; another thread that adds an entry meanwhile leaves it to
// that thread. A short message is copied into the transport. The transport reads a longer one from the
// caller's memory, and the message has been sent when the transport releases that memory.
//
// The lock of the endpoint is never held while something is sent, copied or completed.
class WorldP2pCore final : public WorldP2p,
                           public std::enable_shared_from_this<WorldP2pCore>,
                           public RankLinks::Observer {
 public:
  explicit WorldP2pCore(WorldP2p::Options options);
  ~WorldP2pCore() override;

  absl::Status start();
  Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override;
  Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override;
  void abort(uint64_t channel, const absl::Status& reason) override;
  void forget(uint64_t channel) override;
  void name_ranks(uint64_t channel, HashMap<int, int> names) override;
  std::shared_ptr<Executor> executor() const override { return executor_; }
  void shutdown() override;

 private:
  using ConnectionPtr = RankLinks::ConnectionPtr;
  // Calls on_released() when the transport releases the data of a message.
  class Release;
  struct Peer {
    ConnectionPtr out;     // For messages to the rank.
    ConnectionPtr in;      // For answers to its messages.
    bool sending = false;  // A thread is emptying the outbox.
  };
  // A message whose data the transport reads.
  struct Reading {
    ConnectionPtr connection;
    std::optional<uint64_t> ticket;  // Set when the transport has accepted the message.
    bool released = false;           // The transport released the data before `ticket` was set.
  };

  // ---- Sending.

  Peer& peer(int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return peers_[static_cast<std::size_t>(rank)];
  }
  // Sends a short message at once if no other message waits for the rank, and returns the result. Returns
  // nullopt if the message must be queued, or if the endpoint may refuse it.
  std::optional<absl::Status> send_at_once(int dst, uint64_t channel, int64_t tag, Span data);
  // Sends the entries of the outbox to a connected rank. Without a connection it requests one.
  void empty_outbox(int dst);
  // Send one entry of the outbox, and report the result to the endpoint.
  void transmit(const ConnectionPtr& out, const SendTable::Outgoing& next);
  void transmit_data(const ConnectionPtr& out, const SendTable::Outgoing& next);
  // Sends data that the caller may reuse afterwards: the transport copies the part that it has not sent yet.
  absl::Status send_captured(transport::Connection& out, int dst, const Frame& frame, Span data);
  absl::Status context(const absl::Status& status, uint64_t channel, int dst);
  void on_released(uint64_t id);
  // Makes the transport release the memory of the message, if it uses it. The executor does that if the
  // calling thread is on duty (base/duty.h) and bytes have to be copied.
  void retract(const SendPtr& send, Effects& effects);
  // The second step of retract(): then the message ends.
  void end_reading(const SendPtr& send, transport::Connection& connection, uint64_t ticket, Effects& effects);
  void reply(int rank, const Frame& frame);

  // ---- Operations and events.

  absl::Status check_size(Span data) const;
  // Calls `event`, a void(Endpoint&, Effects&), with the lock of the endpoint held, then performs the
  // effects.
  template <typename Event>
  void on_event(Event event);
  template <typename OperationPtr>
  void cancel(const OperationPtr& operation);
  // Ends the operation when its future is cancelled or its deadline passes.
  template <typename OperationPtr>
  void watch_locked(const OperationPtr& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void schedule_expiry_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void expire();
  void perform(Effects effects);

  void on_out(int rank, const ConnectionPtr& connection) override;
  void on_in(int rank, const ConnectionPtr& connection) override;
  absl::Status on_frame(int rank, bool in, const Frame& frame, transport::Message message) override;
  void on_out_closed(int rank, const absl::Status& reason) override;
  void on_lost(int rank, const absl::Status& reason) override;

  // Set once.
  const WorldP2p::Options options_;
  std::shared_ptr<transport::EventLoop> loop_;
  std::shared_ptr<ThreadPool> executor_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<RankLinks> links_;

  Mutex mutex_;
  Endpoint endpoint_ ABSL_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  HashMap<uint64_t, Reading> reading_ ABSL_GUARDED_BY(mutex_);
  CondVar changed_;  // Notified when an operation for which a thread waits is done.
  absl::Time next_expiry_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::atomic<int> waiters_{0};  // Number of threads that wait for the end of an operation.

  std::once_flag shut_down_;
};

}  // namespace gradwire::collectives::cpu
