#include "gradwire/collectives/cpu/shm_p2p/shm_endpoint.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {
namespace {

// What waits for a future of a rank's drives its rings; what continues one runs where the mesh has it.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(std::weak_ptr<ShmEndpoint> core, std::shared_ptr<Executor> others)
      : core_(std::move(core)), others_(std::move(others)) {}

  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost* cost) override {
    return others_ != nullptr && others_->post_clean(task, cost);
  }
  bool look_until(const std::atomic<bool>& done, absl::Time deadline) override {
    if (const std::shared_ptr<ShmEndpoint> core = core_.lock()) core->drive(done, deadline);
    return done.load();
  }

 protected:
  // It is never the one whose task a thread runs.
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}

 private:
  const std::weak_ptr<ShmEndpoint> core_;
  const std::shared_ptr<Executor> others_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ShmP2p>> ShmP2p::join(const Options& options) {
  const HostMemory::Options memory{.index = options.rank,
                                   .size = options.size,
                                   .store = options.store,
                                   .slot_bytes = ShmCarrier::slot_bytes(options.size),
                                   .timeout = options.timeout};
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> joined, HostMemory::join(memory));
  const auto core = std::make_shared<ShmEndpoint>(options, std::move(joined));
  core->start();
  // What is under way, and the thread, refer to the core alone.
  return std::shared_ptr<ShmP2p>(core.get(), [core](ShmP2p*) { core->shutdown(); });
}

ShmEndpoint::ShmEndpoint(const ShmP2p::Options& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      crowded_(options.size > static_cast<int>(std::thread::hardware_concurrency())),
      sharing_(options.size),
      bells_(*memory_, options.rank, options.size),
      carrier_({.rank = options.rank,
                .size = options.size,
                .eager_bytes = options.eager_bytes,
                .max_pending_rts = kShmMaxPendingRts,
                .whole = "group"},
               *memory_) {}

ShmEndpoint::~ShmEndpoint() { shutdown(); }

void ShmEndpoint::start() {
  executor_ = std::make_shared<LaneExecutor>(weak_from_this(), options_.executor);
  // It keeps the core: who leaves on this thread does not wait for its end.
  thread_ = std::thread([self = shared_from_this()] { self->work(); });
}

template <typename OperationPtr>
void ShmEndpoint::cancel_when_asked(const OperationPtr& operation) {
  operation->promise.on_cancel([core = weak_from_this(), operation] {
    const std::shared_ptr<ShmEndpoint> self = core.lock();
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
  if (!deferred.written.empty()) bells_.publish_core();
}

void ShmEndpoint::perform(DeferredEffects& deferred) {
  using Kind = Effect::Kind;
  for (const int rank : deferred.written) bells_.ring_if_armed(rank);
  for (const int rank : deferred.full) bells_.ring_if_not_polled(rank);
  if (deferred.ended.empty()) return;
  for (Effect& effect : deferred.ended) {
    if (effect.kind == Kind::kDeliver) effect.receive->promise.set_result(effect.rank);
    if (effect.kind == Kind::kEndReceive) effect.receive->promise.set_error(std::move(effect.status));
    if (effect.kind == Kind::kEndSend) effect.send->promise.set_result(std::move(effect.status));
  }
  // Other threads may be asleep, waiting for what has just ended.
  if (sleepers_.load() > 0) bells_.ring(options_.rank);
}

std::optional<absl::Status> ShmEndpoint::try_send(int dst, int64_t tag, Span data) {
  {
    MutexLock lock(mutex_);
    if (absl::Status wrong = endpoint().check(dst); !wrong.ok()) return wrong;
    if (absl::Status refused = endpoint().check_open(dst, kShmChannel); !refused.ok()) return refused;
    if (dst == options_.rank || !carrier_.port(dst).try_write(tag, data)) return std::nullopt;
    bells_.publish_core();
  }
  bells_.ring_if_armed(dst);
  return absl::OkStatus();
}

Future<void> ShmEndpoint::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  // One for all that are done at once.
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
      cancel_when_asked(send);
      watch_locked(deadline);
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
    // What was taken back is not matched; but what can be copied right away is.
    const bool other = src >= 0 && src < options_.size && src != options_.rank;
    if (!closed_ && !(other && carrier_.port(src).next_is_eager())) poll_locked(deferred);
    Effects effects;
    endpoint().receive(receive, effects);
    settle_locked(std::move(effects), deferred);
    const bool waits = endpoint().contains(*receive);
    if (waits) {
      cancel_when_asked(receive);
      watch_locked(deadline);
    }
    // A match may have been an answer to the sender, too.
    if (waits || carrier_.waits_for_room()) {
      arm_locked();
      poll_locked(deferred);
      arm_and_poll_locked(deferred);
    }
  }
  perform(deferred);
  return future;
}

std::optional<absl::StatusOr<int>> ShmEndpoint::try_receive(int src, int64_t tag, Span data) {
  if (src == kAnyRank || src == options_.rank) return std::nullopt;
  // Once, and once more after spinning for news.
  for (const bool may_spin : {true, false}) {
    P2pRingReader::Probe look;
    DeferredEffects deferred;
    bool taken = false;
    {
      MutexLock lock(mutex_);
      if (absl::Status wrong = endpoint().check(src); !wrong.ok()) return wrong;
      if (closed_ || aborted_ || endpoint().matcher().is_lost(src) || endpoint().matcher().size() > 0)
        return std::nullopt;
      ShmPort& port = carrier_.port(src);
      look = port.in().probe();
      if (probe.has_record()) {
        Effects effects;
        bool wake = false;
        if (!port.try_take(tag, data, effects, wake)) return std::nullopt;
        if (wake) deferred.written.push_back(src);
        settle_locked(std::move(effects), deferred);
        if (port.has_more()) carrier_.flush(src, deferred);
        // What found no room is written when the reader rings.
        if (carrier_.waits_for_room()) arm_and_poll_locked(deferred);
        taken = true;
      } else if (!may_spin || carrier_.waits_for_room() || bells_.core_is_wanted(crowded_ ? kAnyRank : src)) {
        return std::nullopt;
      }
    }
    if (taken) {
      perform(deferred);
      return src;
    }
    if (!spin_for(look)) return std::nullopt;
  }
  return std::nullopt;
}

void ShmEndpoint::abort(const absl::Status& reason) {
  DeferredEffects deferred;
  {
    MutexLock lock(mutex_);
    aborted_ = true;
    Effects effects;
    endpoint().abort(kShmChannel, reason, effects);
    settle_locked(std::move(effects), deferred);
    poll_locked(deferred);
    arm_and_poll_locked(deferred);
  }
  perform(deferred);
}

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
  bells_.ring_all();
  perform(deferred);
  if (!thread_.joinable()) return;
  // A continuation that ran on the group's thread may be what leaves. The thread cannot wait for itself; it
  // ends as soon as the continuation has returned.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace gradwire::collectives::cpu
