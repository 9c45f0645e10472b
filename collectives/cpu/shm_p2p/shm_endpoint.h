#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>

#include "gradwire/base/mutex.h"
#include "gradwire/base/polling/core_wait.h"
#include "gradwire/collectives/cpu/memory/host_memory.h"
#include "gradwire/collectives/cpu/shm_p2p/doorbells.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_carrier.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"

namespace gradwire::collectives::cpu {

// The implementation of ShmP2p: a ShmCarrier, guarded by mutex_, and the threads that drive it. Futures are
// completed and doorbells signalled after the lock has been released.
class ShmEndpoint final : public ShmP2p, public std::enable_shared_from_this<ShmEndpoint> {
 public:
  ShmEndpoint(const ShmP2p::Options& options, std::unique_ptr<HostMemory> memory);
  ~ShmEndpoint() override;

  // ResourceExhausted if the thread cannot be started; then call shutdown().
  absl::Status start();
  void shutdown();
  void abort(const absl::Status& reason) override;
  Future<void> send(int dst, int64_t tag, Span data, absl::Time deadline) override;
  std::optional<absl::Status> try_send(int dst, int64_t tag, Span data) override;
  Future<int> receive(int src, int64_t tag, Span data, absl::Time deadline) override;
  std::optional<absl::StatusOr<int>> try_receive(int src, int64_t tag, Span data) override;

  // Polls the rings until `done` is true or the deadline has passed.
  void drive(const std::atomic<bool>& done, absl::Time deadline);

 private:
  Endpoint& endpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return carrier_.endpoint(); }
  void settle_locked(Effects effects, DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(DeferredEffects& deferred) ABSL_LOCKS_EXCLUDED(mutex_);
  template <typename OperationPtr>
  void cancel_on_request(const OperationPtr& operation);

  // Reads and writes everything that is possible now. Returns whether there was anything.
  bool poll_locked(DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // arm_locked() publishes whether others must signal this rank, and returns true if the caller must poll
  // once more. arm_and_poll_locked() does both.
  void arm_and_poll_locked(DeferredEffects& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool arm_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether this rank must read its rings: operations are in progress, entries wait for room, or an abort
  // must be answered.
  bool pending_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !endpoint().idle() || carrier_.waits_for_room() || aborted_;
  }
  // These functions spin for a few microseconds. They return whether there may be something new.
  bool spin(const std::atomic<bool>& done);
  static bool spin_for(const P2pRingReader::Probe& probe);
  // Waits for a moment. Returns false if the deadline has passed, or if nothing can end the wait.
  bool rest(CoreWait& wait, const std::atomic<bool>& done, absl::Time deadline);
  // Sleeps until a signal or `until`. Returns false at once if no operation of this rank is in progress.
  bool sleep(const std::atomic<bool>& done, absl::Time until);
  // Makes the group's thread check the deadlines at `deadline` at the latest.
  void schedule_expiry_locked(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void work();

  const ShmP2p::Options options_;
  const ProcessMark mark_;
  const std::unique_ptr<HostMemory> memory_;
  // Whether there are more ranks than cores.
  const bool oversubscribed_;
  CoreSharing sharing_;
  std::shared_ptr<Executor> executor_;
  std::thread thread_;

  Mutex mutex_;
  Doorbells doorbells_;  // Functions that must not run concurrently are called with mutex_ held.
  ShmCarrier carrier_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;  // Number of operations begun so far.
  // Number of threads that poll, and of threads that sleep until a signal.
  int drivers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> sleepers_{0};  // Changed under mutex_.
  // When the group's thread checks the deadlines next. InfinitePast: it was signalled and has not run yet.
  absl::Time next_expiry_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gradwire::collectives::cpu
