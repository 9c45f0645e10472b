#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/collectives/cpu/mesh/mesh_links.h"
#include "gradwire/collectives/cpu/mesh/mesh_sender.h"
#include "gradwire/collectives/cpu/p2p/endpoint.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/transport.h"

namespace gradwire::collectives::cpu {

// The implementation of Mesh: an Endpoint whose carrier is the connections of MeshLinks. MeshSender is the
// sending part of the carrier.
//
// The lock of the endpoint is never held while something is sent, copied or completed.
class MeshCore final : public Mesh,
                       public std::enable_shared_from_this<MeshCore>,
                       public MeshLinks::Observer,
                       public MeshSender::Owner {
 public:
  explicit MeshCore(Mesh::Options options);
  ~MeshCore() override;

  absl::Status start();
  Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override;
  Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override;
  void abort(uint64_t channel, const absl::Status& reason) override;
  void forget(uint64_t channel) override;
  void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) override;
  std::shared_ptr<Executor> executor() const override { return executor_; }
  void shutdown() override;

 private:
  using ConnectionPtr = MeshLinks::ConnectionPtr;
  absl::Status check_size(Span data) const;
  // Calls `event`, a void(Endpoint&, Effects&), with the lock of the endpoint held, then performs the
  // effects.
  template <typename Event>
  void on_event(Event event);
  template <typename OperationPtr>
  void cancel(const OperationPtr& operation);
  // Ends the operation when its future is cancelled or its deadline passes.
  template <typename OperationPtr>
  void watch_locked(const OperationPtr& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(endpoint_.mutex);
  void schedule_expiry_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(endpoint_.mutex);
  void expire();

  void perform(Effects effects) override;
  void connect(int rank) override;
  std::weak_ptr<MeshSender> sender() override;
  void reply(int rank, const Frame& frame);

  void on_out(int rank, const ConnectionPtr& connection) override;
  void on_in(int rank, const ConnectionPtr& connection) override;
  absl::Status on_frame(int rank, bool in, const Frame& frame, transport::Message message) override;
  void on_out_closed(int rank, const absl::Status& reason) override;
  void on_lost(int rank, const absl::Status& reason) override;

  // Set once.
  const Mesh::Options options_;
  std::shared_ptr<transport::EventLoop> loop_;
  std::shared_ptr<ThreadPool> executor_;
  std::unique_ptr<TimerQueue> timers_;
  std::unique_ptr<MeshLinks> links_;

  MeshEndpoint endpoint_;
  MeshSender sender_;
  CondVar changed_;  // Notified when an operation for which a thread waits is done.
  std::vector<ConnectionPtr> in_ ABSL_GUARDED_BY(endpoint_.mutex);
  absl::Time next_expiry_ ABSL_GUARDED_BY(endpoint_.mutex) = absl::InfiniteFuture();
  std::atomic<int> waiters_{0};  // Number of threads that wait for the end of an operation.

  std::once_flag shut_down_;
};

}  // namespace gradwire::collectives::cpu
