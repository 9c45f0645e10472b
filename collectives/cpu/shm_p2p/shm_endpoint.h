#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/core_wait.h"
#include "gradwire/collectives/cpu/host_memory.h"
#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_carrier.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"

namespace gradwire::collectives::cpu {

// What is behind ShmP2p: a ShmCarrier, guarded by mutex_, and the threads that drive it. Futures are
// completed, and others are rung for, when the lock has been released.
class ShmEndpoint final : public ShmP2p, public std::enable_shared_from_this<ShmEndpoint> {
 public:
  ShmEndpoint(const ShmP2p::Options& options, std::unique_ptr<HostMemory> memory);
  ~ShmEndpoint() override;

  // shm_endpoint.cc
  void start();
  void shutdown();
  void abort(const absl::Status& reason) override;
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline) override;
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data) override;
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline) override;
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data) override;

  // shm_endpoint_wait.cc
  // Drives until `done`, or the deadline.
  void drive(const std::atomic<bool>& done, absl::Time deadline);

 private:
  Endpoint& endpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return carrier_.endpoint(); }
  void settle_locked(Effects effects, DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(DeferredEffects& deferred) ABSL_LOCKS_EXCLUDED(mutex_);
  template <typename OperationPtr>
  void cancel_when_asked(const OperationPtr& operation);

  // Everything that can be done now; whether there was anything.
  bool poll_locked(DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Says to the others whether this rank must be rung for. True: poll once more.
  void arm_and_poll_locked(DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool arm_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this rank must read what others say: an abort must be answered, too.
  bool pending_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !endpoint().idle() || carrier_.waits_for_room() || aborted_;
  }
  // These spin for a few microseconds; whether there may be news.
  bool spin(const std::atomic<bool>& done);
  static bool spin_for(const P2pRingReader::Probe& probe);
  // Waits a moment; false when the deadline has come, or nothing can end the wait.
  bool rest(CoreWait& wait, const std::atomic<bool>& done, absl::Time deadline);
  // False, at once, when no operation is under way here.
  bool sleep(const std::atomic<bool>& done, absl::Time until);
  // Has the group's thread look at operations by then.
  void watch_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void work();

  const ShmP2p::Options options_;
  const std::unique_ptr<HostMemory> memory_;
  // More ranks than cores.
  const bool crowded_;
  CoreSharing sharing_;
  std::shared_ptr<Executor> executor_;
  std::thread thread_;

  Mutex mutex_;
  Doorbells bells_;  // The methods that one thread at a time may call: under mutex_.
  ShmCarrier carrier_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;  // Begun until now.
  // Threads that poll, and that sleep until they are rung for.
  int drivers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> sleepers_{0};  // Changed under mutex_.
  // When the group's thread looks at deadlines next.
  absl::Time alarm_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::collectives::cpu
