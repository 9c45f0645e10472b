// The operations of a rank, and how it joins and leaves. Each operation has the same steps:
// 1. With the lock held, change the Endpoint, perform its effects on the rings (settle_locked), and poll.
// 2. After the lock has been released, signal other ranks and complete futures (perform).

#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/polling/core_wait.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/base/process/start_thread.h"

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
  if (absl::Status started = endpoint->start(); !started.ok()) {
    endpoint->shutdown();  // The other ranks may have joined already.
    return started;
  }
  // Operations in progress and the thread own the endpoint, not this pointer. When the last caller releases
  // the pointer, the endpoint shuts down. The thread's copy keeps the endpoint in a forked child.
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

absl::Status ShmEndpoint::start() {
  executor_ = std::make_shared<DriveExecutor>(weak_from_this(), options_.executor);
  // The thread owns the endpoint: a caller that leaves on this thread does not wait for the thread's end.
  GRADWIRE_ASSIGN_OR_RETURN(thread_, start_thread("shm-p2p", [self = shared_from_this()] { self->work(); }));
  return absl::OkStatus();
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
  if (!mark_.here()) return;
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

// The part of ShmEndpoint in which threads wait for the rings.

namespace {

// Number of spins while this rank waits for room in a ring: the probes of incoming rings do not detect room.
constexpr int kSpinsForRoom = 8;
constexpr unsigned kPollsBetweenClocks = 1024;
// Number of polls without result after which the group's thread stops polling.
constexpr int kThreadSpins = 4;
constexpr absl::Duration kThreadSleepsFor = absl::Milliseconds(100);

}  // namespace

void ShmEndpoint::arm_and_poll_locked(DeferredEffects& deferred) {
  // The group's thread reads what one poll leaves.
  if (arm_locked()) poll_locked(deferred);
  if (carrier_.has_more() && drivers_ == 0) deferred.full.push_back(options_.rank);
}

// Chooses the state to publish:
// - kArmed: a thread of this rank sleeps; or nobody polls, but something is pending, so the group's thread
//   must be woken for every record.
// - kPolled: a thread polls, so no signal is needed.
// - kIdle: nothing is expected. Messages may wait in the rings until an operation begins.
// The extra poll after kIdle is needed only if a ring is full: its writer may have waited for room without a
// signal.
bool ShmEndpoint::arm_locked() {
  const bool asleep = sleepers_.load(std::memory_order_relaxed) > 0;
  const Doorbell::State wanted = asleep || (drivers_ == 0 && pending_locked()) ? Doorbell::kArmed
                                 : drivers_ > 0                                ? Doorbell::kPolled
                                                                               : Doorbell::kIdle;
  return doorbells_.publish(wanted) && (wanted == Doorbell::kArmed || carrier_.is_full());
}

bool ShmEndpoint::spin_for(const P2pRingReader::Probe& probe) {
  return gradwire::spin(CoreWait::kSpins, [&] { return probe.has_record(); });
}

// The probes are copied under the lock and used without it, so that other threads can use the endpoint
// meanwhile. A probe may be outdated if another thread has read the record; then the caller only polls once
// in vain.
bool ShmEndpoint::spin(const std::atomic<bool>& done) {
  absl::InlinedVector<P2pRingReader::Probe, 8> rings;
  int spins = CoreWait::kSpins;
  {
    MutexLock lock(mutex_);
    rings = carrier_.probes();
    if (carrier_.waits_for_room()) spins = kSpinsForRoom;
  }
  return gradwire::spin(spins, [&] {
    return done.load(std::memory_order_relaxed) ||
           std::any_of(rings.begin(), rings.end(),
                       [](const P2pRingReader::Probe& ring) { return ring.has_record(); });
  });
}

bool ShmEndpoint::poll_locked(DeferredEffects& deferred) {
  if (closed_) return false;
  const bool any = carrier_.poll(deferred);
  if (!deferred.written.empty()) doorbells_.publish_core();
  return any;
}

// A thread that waits for a future polls for all operations of this rank:
// 1. Count the thread as a driver, so that others do not signal while it polls.
// 2. Poll until `done` is set. The clock is read seldom while messages arrive, because reading it costs as
//    much as a poll.
// 3. Stop being a driver. Publishing the new state may need one more poll, because others did not signal
//    meanwhile.
void ShmEndpoint::drive(const std::atomic<bool>& done, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    ++drivers_;
    arm_locked();
  }
  CoreWait wait(sharing_, deadline);
  bool goes_on = true;
  for (unsigned polls = 1; goes_on && !done.load(std::memory_order_acquire); ++polls) {
    DeferredEffects deferred;
    bool any;
    {
      MutexLock lock(mutex_);
      any = poll_locked(deferred);
      // A closed endpoint cannot complete the operation.
      goes_on = !closed_;
    }
    perform(deferred);
    if (any) {
      wait.renew();
      if (polls % kPollsBetweenClocks == 0 && Clock::system().now() >= deadline) break;
    } else if (goes_on) {
      goes_on = rest(wait, done, deadline);
    }
  }
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    --drivers_;
    arm_and_poll_locked(deferred);
  }
  perform(deferred);
}

bool ShmEndpoint::rest(CoreWait& wait, const std::atomic<bool>& done, absl::Time deadline) {
  switch (wait.rest([this] { return doorbells_.core_is_wanted(kAnyRank); })) {
    case CoreWait::Rest::kSpin:
      if (spin(done)) break;
      [[fallthrough]];
    case CoreWait::Rest::kYield:
      ::sched_yield();
      break;
    case CoreWait::Rest::kSleep:
      return Clock::system().now() < deadline && sleep(done, deadline);
  }
  return true;
}

// No wake-up may be lost between the last poll and the sleep. So:
// 1. Read the number of signals so far.
// 2. Publish that this rank must be signalled for every write.
// 3. Poll once more, for records that were written before step 2 without a signal.
// 4. Sleep only if step 3 found nothing, and only until the number of signals differs from step 1.
bool ShmEndpoint::sleep(const std::atomic<bool>& done, absl::Time until) {
  DeferredEffects deferred;
  uint32_t signals;
  bool any;
  absl::Time now;
  {
    MutexLock lock(mutex_);
    // If no operation is in progress, `done` may depend on a continuation that does not signal this rank.
    if (endpoint().idle()) return false;
    --drivers_;
    ++sleepers_;
    signals = doorbells_.signal_count();
    arm_locked();
    // Records that were written before this rank was armed did not signal it, so poll once more.
    any = poll_locked(deferred);
    now = Clock::system().now();
    if (!closed_) carrier_.expire(now, deferred);
    until = std::min(until, carrier_.next_deadline());
  }
  perform(deferred);
  if (!any && !done.load()) doorbells_.wait(signals, std::min(CoreWait::kSleepFor, until - now));
  MutexLock lock(mutex_);
  --sleepers_;
  ++drivers_;
  arm_locked();
  return true;
}

// Called for each operation that is not done at once. In most cases the thread will run early enough by
// itself, and no signal is sent. While next_expiry_ is InfiniteFuture the thread sleeps without a limit. Then
// it is signalled even for an operation without a deadline, because only its regular checks find ranks that
// are gone.
void ShmEndpoint::schedule_expiry_locked(absl::Time deadline) {
  if (deadline >= next_expiry_ && next_expiry_ != absl::InfiniteFuture()) return;
  // Until the thread has run.
  next_expiry_ = absl::InfinitePast();
  doorbells_.signal(options_.rank);
}

// The group's thread. It handles operations for which no thread waits, and messages for which a ring had no
// room. After something has arrived, more may follow, so it polls on for a moment, unless another thread
// polls.
// Each round, with the lock held:
// 1. Read the number of signals, so that a signal after the poll ends the sleep of step 5 at once.
// 2. Poll, and end the operations whose deadline has passed.
// 3. Decide whether this thread goes on polling. If so, it counts as a driver, and others do not signal.
// 4. Publish the state, and poll once more if others may have written without a signal.
// 5. Without the lock: complete futures, then spin or sleep.
//
// The first round waits for the first signal. The number of signals is 0 in a new group, so a signal that
// came before this thread ran is not lost. Without one, nothing is in progress, and what others have written
// may stay in the rings, where try_receive() finds it.
void ShmEndpoint::work() {
  static const std::atomic<bool> never{false};
  doorbells_.wait(0, absl::InfiniteDuration());
  bool keeps_polling = false;
  int idle_polls = 0;
  uint64_t seen_operations = 0;
  while (true) {
    DeferredEffects deferred;
    uint32_t signals;
    bool any;
    absl::Duration left;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      signals = doorbells_.signal_count();
      any = poll_locked(deferred);
      const absl::Time now = Clock::system().now();
      if (!closed_) carrier_.expire(now, deferred);
      idle_polls = any ? 0 : idle_polls + 1;
      const bool poll_more = (any || keeps_polling) && idle_polls < kThreadSpins &&
                             drivers_ == (keeps_polling ? 1 : 0) && !doorbells_.core_is_wanted(kAnyRank);
      if (poll_more != keeps_polling) drivers_ += poll_more ? 1 : -1;
      keeps_polling = poll_more;
      if (arm_locked() && poll_locked(deferred)) any = true;
      // While operations are used, the thread checks at regular intervals. Waking it for every operation that
      // waits for a moment would cost more.
      const bool in_use = pending_locked() || std::exchange(seen_operations, operations_) != operations_;
      next_expiry_ =
          in_use ? std::min(now + kThreadSleepsFor, carrier_.next_deadline()) : absl::InfiniteFuture();
      left = next_expiry_ - now;
    }
    perform(deferred);
    if (keeps_polling) {
      (void)spin(never);
    } else if (!any) {
      doorbells_.wait(signals, left);
    }
  }
}

}  // namespace gradwire::collectives::cpu
