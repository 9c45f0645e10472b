// The operations of a rank, and how it joins and leaves. Each operation has the same steps:
// 1. With the lock held, change the Endpoint, perform its effects on the rings (settle_locked), and poll.
// 2. After the lock has been released, signal other ranks and complete futures (perform).
// The threads that poll and sleep are in shm_endpoint_wait.cc.

#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {
namespace {

// The executor of the operations' futures. A thread that waits for such a future drives the rings meanwhile.
// Continuations run on the executor from the options.
class DriveExecutor final : public Executor {
 public:
  DriveExecutor(std::weak_ptr<ShmEndpoint> endpoint, std::shared_ptr<Executor> continuations)
      : endpoint_(std::move(endpoint)), continuations_(std::move(continuations)) {}

  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost* cost) override {
    return continuations_ != nullptr && continuations_->post_clean(task, cost);
  }
  bool drive_until(const std::atomic<bool>& done, absl::Time deadline) override {
    if (const std::shared_ptr<ShmEndpoint> endpoint = endpoint_.lock()) endpoint->drive(done, deadline);
    return done.load();
  }

 protected:
  // Never called for a task of this executor: it has no threads of its own.
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}

 private:
  const std::weak_ptr<ShmEndpoint> endpoint_;
  const std::shared_ptr<Executor> continuations_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ShmP2p>> ShmP2p::join(const Options& options) {
  const HostMemory::Options memory{.index = options.rank,
                                   .size = options.size,
                                   .store = options.store,
                                   .slot_bytes = ShmCarrier::slot_bytes(options.size),
                                   .timeout = options.timeout};
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> joined, HostMemory::join(memory));
  const auto endpoint = std::make_shared<ShmEndpoint>(options, std::move(joined));
  endpoint->start();
  // Operations in progress and the thread own the endpoint, not this pointer. When the last caller releases
  // the pointer, the endpoint shuts down.
  return std::shared_ptr<ShmP2p>(endpoint.get(), [endpoint](ShmP2p*) { endpoint->shutdown(); });
}

ShmEndpoint::ShmEndpoint(const ShmP2p::Options& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      oversubscribed_(options.size > static_cast<int>(std::thread::hardware_concurrency())),
      sharing_(options.size),
      doorbells_(*memory_, options.rank, options.size),
      carrier_({.rank = options.rank,
                .size = options.size,
                .eager_bytes = options.eager_bytes,
                .max_pending_rts = kShmMaxPendingRts,
                .whole = "group"},
               *memory_) {}

ShmEndpoint::~ShmEndpoint() { shutdown(); }

void ShmEndpoint::start() {
  executor_ = std::make_shared<DriveExecutor>(weak_from_this(), options_.executor);
  // The thread owns the endpoint: a caller that leaves on this thread does not wait for the thread's end.
  thread_ = std::thread([self = shared_from_this()] { self->work(); });
}

template <typename OperationPtr>
void ShmEndpoint::cancel_on_request(const OperationPtr& operation) {
  // A weak pointer: the endpoint owns the operation, and a strong one would be a cycle. The callback locks
  // mutex_, which the caller of this function holds. It cannot run inside on_cancel(): nobody else has the
  // future yet.
  operation->promise.on_cancel([endpoint = weak_from_this(), operation] {
    const std::shared_ptr<ShmEndpoint> self = endpoint.lock();
    if (self == nullptr) return;
    DeferredEffects deferred;
    {
      MutexLock lock(self->mutex_);
      Effects effects;
      self->endpoint().end(operation, absl::CancelledError("cancelled by the caller"), effects);
      self->settle_locked(std::move(effects), deferred);
    }
    self->perform(deferred);
  });
}

void ShmEndpoint::settle_locked(Effects effects, DeferredEffects& deferred) {
  carrier_.settle(std::move(effects), deferred);
  if (!deferred.written.empty()) doorbells_.publish_core();
}

// Called without the lock: a continuation of a future may call this endpoint again. Signals come first,
// because other ranks wait for them, and a continuation may run for long. The data of an operation needs no
// care here: it was copied with the lock held.
void ShmEndpoint::perform(DeferredEffects& deferred) {
  using Kind = Effect::Kind;
  for (const int rank : deferred.written) doorbells_.signal_if_armed(rank);
  for (const int rank : deferred.full) doorbells_.signal_if_not_polled(rank);
  if (deferred.ended.empty()) return;
  for (Effect& effect : deferred.ended) {
    if (effect.kind == Kind::kDeliver) effect.receive->promise.set_result(effect.rank);
    if (effect.kind == Kind::kEndReceive) effect.receive->promise.set_error(std::move(effect.status));
    if (effect.kind == Kind::kEndSend) effect.send->promise.set_result(std::move(effect.status));
  }
  // Other threads of this rank may sleep, waiting for the operations that have just ended. Such a thread
  // increments sleepers_ and then reads `done`; this thread has set `done` and then reads sleepers_. So one
  // of them sees the other. The sleep is bounded anyway (CoreWait::kSleepFor).
  if (sleepers_.load() > 0) doorbells_.signal(options_.rank);
}

std::optional<absl::Status> ShmEndpoint::try_send(int dst, int64_t tag, Span data) {
  {
    MutexLock lock(mutex_);
    if (absl::Status wrong = endpoint().check(dst); !wrong.ok()) return wrong;
    if (absl::Status refused = endpoint().check_open(dst, kShmChannel); !refused.ok()) return refused;
    // A message to this rank itself does not use a ring. The record cannot overtake another one: try_write()
    // refuses while entries wait in the outbox.
    if (dst == options_.rank || !carrier_.port(dst).try_write(tag, data)) return std::nullopt;
    doorbells_.publish_core();
  }
  doorbells_.signal_if_armed(dst);
  return absl::OkStatus();
}

Future<void> ShmEndpoint::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  // Shared by all sends that complete at once.
  static const auto* const sent = new Future<void>(absl::OkStatus());
  if (const std::optional<absl::Status> done = try_send(dst, tag, data))
    return done->ok() ? *sent : Future<void>(*done);
  const auto send = std::make_shared<Send>(executor_, dst, kShmChannel, tag, data, deadline);
  const Future<void> future = send->promise.future();
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    ++operations_;
    Effects effects;
    endpoint().send(send, effects);
    if (endpoint().sends().contains(*send)) {
      cancel_on_request(send);
      schedule_expiry_locked(deadline);
    }
    settle_locked(std::move(effects), deferred);
    arm_and_poll_locked(deferred);
  }
  perform(deferred);
  return future;
}

Future<int> ShmEndpoint::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  const auto receive = std::make_shared<Receive>(executor_, src, kShmChannel, tag, data, deadline);
  const Future<int> future = receive->promise.future();
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    ++operations_;
    // Poll first, so that messages that were cancelled meanwhile are not matched. If the next record is an
    // eager message, do not: it can be copied directly into this receive.
    const bool other = src >= 0 && src < options_.size && src != options_.rank;
    if (!closed_ && !(other && carrier_.port(src).next_is_eager())) poll_locked(deferred);
    Effects effects;
    endpoint().receive(receive, effects);
    settle_locked(std::move(effects), deferred);
    const bool waits = endpoint().contains(*receive);
    if (waits) {
      cancel_on_request(receive);
      schedule_expiry_locked(deadline);
    }
    // A match may have queued an answer to the sender, too.
    if (waits || carrier_.waits_for_room()) {
      // 1. Publish that others must signal this rank.
      // 2. Poll for what they wrote before they could see that.
      // 3. The poll may have ended the receive. Publish the state again, so that others do not signal in
      //    vain.
      arm_locked();
      poll_locked(deferred);
      arm_and_poll_locked(deferred);
    }
  }
  perform(deferred);
  return future;
}

// The fast path: it copies the record at the head of the ring into `data`, without the Matcher. It must give
// the same result as the slow path:
// - If any message or receive waits in the Matcher, an older one could be overtaken, so the slow path is
//   taken.
// - The record must be a whole eager message of this tag and size. The slow path handles everything else,
//   also errors.
// - It spins only if that does not keep the sender from its core, and if nothing waits for room: then this
//   thread must poll all rings.
std::optional<absl::StatusOr<int>> ShmEndpoint::try_receive(int src, int64_t tag, Span data) {
  if (src == kAnyRank || src == options_.rank) return std::nullopt;
  // Try once, and once more after spinning until a record arrives.
  for (const bool may_spin : {true, false}) {
    P2pRingReader::Probe probe;
    DeferredEffects deferred;
    bool taken = false;
    {
      MutexLock lock(mutex_);
      if (absl::Status wrong = endpoint().check(src); !wrong.ok()) return wrong;
      if (closed_ || aborted_ || endpoint().matcher().is_lost(src) || endpoint().matcher().size() > 0)
        return std::nullopt;
      ShmPort& port = carrier_.port(src);
      probe = port.in().probe();
      if (probe.has_record()) {
        Effects effects;
        bool wake = false;
        if (!port.try_take(tag, data, effects, wake)) return std::nullopt;
        // In most cases taking the message is all there is to do.
        if (!wake && effects.empty() && !carrier_.waits_for_room()) return src;
        if (wake) deferred.written.push_back(src);
        settle_locked(std::move(effects), deferred);
        if (port.has_more()) carrier_.flush(src, deferred);
        // Entries for which there was no room are written when the reader signals.
        if (carrier_.waits_for_room()) arm_and_poll_locked(deferred);
        taken = true;
      } else if (!may_spin || carrier_.waits_for_room() ||
                 doorbells_.core_is_wanted(oversubscribed_ ? kAnyRank : src)) {
        return std::nullopt;
      }
    }
    if (taken) {
      perform(deferred);
      return src;
    }
    if (!spin_for(probe)) return std::nullopt;
  }
  return std::nullopt;
}

void ShmEndpoint::abort(const absl::Status& reason) {
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    // From now on the rank keeps reading its rings although no operation is in progress (pending_locked). So
    // messages of other ranks are refused with NACK, and those ranks learn of the abort.
    aborted_ = true;
    Effects effects;
    endpoint().abort(kShmChannel, reason, effects);
    settle_locked(std::move(effects), deferred);
    poll_locked(deferred);
    arm_and_poll_locked(deferred);
  }
  perform(deferred);
}

// 1. Close the endpoint: operations end, and the group's thread will end (work()).
// 2. Publish that this rank has left. Its records are in the rings before that, so others still read them
//    (ShmCarrier::expire).
// 3. Wake all ranks, and with them the thread of this rank.
// 4. Complete the futures.
// 5. Wait for the thread.
void ShmEndpoint::shutdown() {
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    Effects effects;
    endpoint().close(absl::CancelledError("this rank has left the group"), effects);
    settle_locked(std::move(effects), deferred);
    memory_->member(options_.rank).left.store(1);
  }
  doorbells_.signal_all();
  perform(deferred);
  if (!thread_.joinable()) return;
  // The caller may be a continuation that runs on the group's thread. The thread cannot wait for itself; it
  // ends as soon as the continuation has returned.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace gradwire::collectives::cpu
