#include "gradwire/collectives/cpu/lanes/lane_core.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {
namespace {

// What waits for a future of a rank's drives its lanes; what continues one runs where the mesh has it.
class LaneExecutor final : public Executor {
 public:
  LaneExecutor(std::weak_ptr<LaneCore> core, std::shared_ptr<Executor> others)
      : core_(std::move(core)), others_(std::move(others)) {}

  using Executor::post_clean;
  bool post_clean(Task& task, TaskCost* cost) override {
    return others_ != nullptr && others_->post_clean(task, cost);
  }
  bool look_until(const std::atomic<bool>& done, absl::Time deadline) override {
    if (const std::shared_ptr<LaneCore> core = core_.lock()) core->drive(done, deadline);
    return done.load();
  }

 protected:
  // It is never the one whose task a thread runs.
  absl::Status begin_blocking(bool) override { return absl::OkStatus(); }
  void end_blocking() override {}

 private:
  const std::weak_ptr<LaneCore> core_;
  const std::shared_ptr<Executor> others_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Lanes>> Lanes::join(const Options& options) {
  const HostMemory::Options memory{.index = options.rank,
                                   .size = options.size,
                                   .store = options.store,
                                   .slot_bytes = LaneCarrier::slot_bytes(options.size),
                                   .timeout = options.timeout};
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> joined, HostMemory::join(memory));
  const auto core = std::make_shared<LaneCore>(options, std::move(joined));
  core->start();
  // What is under way, and the thread, refer to the core alone.
  return std::shared_ptr<Lanes>(core.get(), [core](Lanes*) { core->shutdown(); });
}

LaneCore::LaneCore(const Lanes::Options& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      crowded_(options.size > static_cast<int>(std::thread::hardware_concurrency())),
      sharing_(options.size),
      bells_(*memory_, options.rank, options.size),
      carrier_({.rank = options.rank,
                .size = options.size,
                .eager_bytes = options.eager_bytes,
                .max_announced = kLaneMaxAnnounced,
                .whole = "group"},
               *memory_) {}

LaneCore::~LaneCore() { shutdown(); }

void LaneCore::start() {
  executor_ = std::make_shared<LaneExecutor>(weak_from_this(), options_.executor);
  // It keeps the core: who leaves on this thread does not wait for its end.
  thread_ = std::thread([self = shared_from_this()] { self->work(); });
}

template <typename OperationPtr>
void LaneCore::cancel_when_asked(const OperationPtr& operation) {
  operation->promise.on_cancel([core = weak_from_this(), operation] {
    const std::shared_ptr<LaneCore> self = core.lock();
    if (self == nullptr) return;
    LaneTodos todos;
    {
      MutexLock lock(self->mutex_);
      Effects effects;
      self->endpoint().end(operation, absl::CancelledError("cancelled by the caller"), effects);
      self->settle_locked(std::move(effects), todos);
    }
    self->perform(todos);
  });
}

void LaneCore::settle_locked(Effects effects, LaneTodos& todos) {
  carrier_.settle(std::move(effects), todos);
  if (!todos.written.empty()) bells_.publish_core();
}

void LaneCore::perform(LaneTodos& todos) {
  using Kind = Effect::Kind;
  for (const int rank : todos.written) bells_.ring_if_armed(rank);
  for (const int rank : todos.full) bells_.ring_if_unattended(rank);
  if (todos.ended.empty()) return;
  for (Effect& effect : todos.ended) {
    if (effect.kind == Kind::kDeliver) effect.receive->promise.set_result(effect.rank);
    if (effect.kind == Kind::kEndReceive) effect.receive->promise.set_error(std::move(effect.status));
    if (effect.kind == Kind::kEndSend) effect.send->promise.set_result(std::move(effect.status));
  }
  // Other threads may be asleep, waiting for what has just ended.
  if (sleepers_.load() > 0) bells_.ring(options_.rank);
}

std::optional<absl::Status> LaneCore::try_send(int dst, int64_t tag, Span data) {
  {
    MutexLock lock(mutex_);
    if (absl::Status wrong = endpoint().check(dst); !wrong.ok()) return wrong;
    if (absl::Status refused = endpoint().check_open(dst, kLaneChannel); !refused.ok()) return refused;
    if (dst == options_.rank || !carrier_.port(dst).try_write(tag, data)) return std::nullopt;
    bells_.publish_core();
  }
  bells_.ring_if_armed(dst);
  return absl::OkStatus();
}

Future<void> LaneCore::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  // One for all that are done at once.
  static const auto* const sent = new Future<void>(absl::OkStatus());
  if (const std::optional<absl::Status> done = try_send(dst, tag, data))
    return done->ok() ? *sent : Future<void>(*done);
  const auto send = std::make_shared<Send>(executor_, dst, kLaneChannel, tag, data, deadline);
  const Future<void> future = send->promise.future();
  LaneTodos todos;
  {
    MutexLock lock(mutex_);
    ++operations_;
    Effects effects;
    endpoint().send(send, effects);
    if (endpoint().sends().contains(*send)) {
      cancel_when_asked(send);
      watch_locked(deadline);
    }
    settle_locked(std::move(effects), todos);
    arm_and_poll_locked(todos);
  }
  perform(todos);
  return future;
}

Future<int> LaneCore::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  const auto receive = std::make_shared<Receive>(executor_, src, kLaneChannel, tag, data, deadline);
  const Future<int> future = receive->promise.future();
  LaneTodos todos;
  {
    MutexLock lock(mutex_);
    ++operations_;
    // What was taken back is not matched; but what can be copied right away is.
    const bool other = src >= 0 && src < options_.size && src != options_.rank;
    if (!closed_ && !(other && carrier_.port(src).next_is_eager())) poll_locked(todos);
    Effects effects;
    endpoint().receive(receive, effects);
    settle_locked(std::move(effects), todos);
    const bool waits = endpoint().contains(*receive);
    if (waits) {
      cancel_when_asked(receive);
      watch_locked(deadline);
    }
    // A match may have been an answer to the sender, too.
    if (waits || carrier_.waits_for_room()) {
      arm_locked();
      poll_locked(todos);
      arm_and_poll_locked(todos);
    }
  }
  perform(todos);
  return future;
}

std::optional<absl::StatusOr<int>> LaneCore::try_receive(int src, int64_t tag, Span data) {
  if (src == kAnyRank || src == options_.rank) return std::nullopt;
  // Once, and once more after spinning for news.
  for (const bool may_spin : {true, false}) {
    LaneReader::Look look;
    LaneTodos todos;
    bool taken = false;
    {
      MutexLock lock(mutex_);
      if (absl::Status wrong = endpoint().check(src); !wrong.ok()) return wrong;
      if (closed_ || aborted_ || endpoint().matcher().is_lost(src) || endpoint().matcher().size() > 0)
        return std::nullopt;
      LanePort& port = carrier_.port(src);
      look = port.in().look();
      if (look.news()) {
        Effects effects;
        bool wake = false;
        if (!port.try_take(tag, data, effects, wake)) return std::nullopt;
        if (wake) todos.written.push_back(src);
        settle_locked(std::move(effects), todos);
        if (port.has_more()) carrier_.flush(src, todos);
        // What found no room is written when the reader rings.
        if (carrier_.waits_for_room()) arm_and_poll_locked(todos);
        taken = true;
      } else if (!may_spin || carrier_.waits_for_room() || bells_.core_is_wanted(crowded_ ? kAnyRank : src)) {
        return std::nullopt;
      }
    }
    if (taken) {
      perform(todos);
      return src;
    }
    if (!spin_for(look)) return std::nullopt;
  }
  return std::nullopt;
}

void LaneCore::abort(const absl::Status& reason) {
  LaneTodos todos;
  {
    MutexLock lock(mutex_);
    aborted_ = true;
    Effects effects;
    endpoint().abort(kLaneChannel, reason, effects);
    settle_locked(std::move(effects), todos);
    poll_locked(todos);
    arm_and_poll_locked(todos);
  }
  perform(todos);
}

void LaneCore::shutdown() {
  LaneTodos todos;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    Effects effects;
    endpoint().close(absl::CancelledError("this rank has left the group"), effects);
    settle_locked(std::move(effects), todos);
    memory_->member(options_.rank).left.store(1);
  }
  bells_.ring_all();
  perform(todos);
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
