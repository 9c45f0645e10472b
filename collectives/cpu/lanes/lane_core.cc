#include "gradwire/collectives/cpu/lanes/lane_core.h"

#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {
namespace {

constexpr std::size_t kPage = 4096;

// For the payload of a lane. Measured with two ranks on two cores: 256 KiB cost long messages up to twice the time of a
// mebibyte. With many members lanes must not fill the address space.
std::size_t data_bytes(int size) {
  if (size <= 4) return std::size_t{1} << 20;
  return std::size_t{size <= 16 ? 256u : 64u} << 10;
}

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

static_assert(sizeof(LaneBell) <= kPage);

std::size_t LaneCore::slot_bytes(int size) {
  const std::size_t bytes = kPage + static_cast<std::size_t>(size) * Lane::bytes(data_bytes(size));
  return (bytes + 2 * kPage - 1) / (2 * kPage) * kPage;
}

char* LaneCore::lane_memory(const HostMemory& memory, int from, int to) {
  return memory.slot(from, 0) + kPage + static_cast<std::size_t>(to) * Lane::bytes(data_bytes(memory.size()));
}

Lane LaneCore::lane(const HostMemory& memory, int from, int to) {
  return {lane_memory(memory, from, to), data_bytes(memory.size())};
}

LaneCore::LaneCore(const Lanes::Options& options, std::unique_ptr<HostMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      crowded_(options.size > static_cast<int>(std::thread::hardware_concurrency())),
      matcher_(options.rank, options.size) {
  MutexLock lock(mutex_);
  peers_ = std::vector<Peer>(static_cast<std::size_t>(options_.size));
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    peer(rank).out.emplace(lane(*memory_, options_.rank, rank));
    peer(rank).in.emplace(lane(*memory_, rank, options_.rank));
  }
}

LaneCore::~LaneCore() { shutdown(); }

void LaneCore::start() {
  executor_ = std::make_shared<LaneExecutor>(weak_from_this(), options_.executor);
  // It keeps the core: who leaves on this thread does not wait for its end.
  thread_ = std::thread([self = shared_from_this()] { self->work(); });
}

void LaneCore::finish_locked(const SendPtr& send, absl::Status status, Todos& todos) {
  sends_.erase(send->id);
  settle_locked(*send);
  send->result = std::move(status);
  todos.ended.emplace_back(send);
}

void LaneCore::finish_locked(const ReceivePtr& receive, absl::StatusOr<int> result, Todos& todos) {
  receives_.erase(receive->id);
  receive->result = std::move(result);
  todos.ended.emplace_back(receive);
}

void LaneCore::perform(Todos& todos) {
  for (const int rank : todos.written) ring_if_armed(rank);
  for (const int rank : todos.full) ring_if_unattended(rank);
  if (todos.ended.empty()) return;
  for (const auto& each : todos.ended) {
    if (const SendPtr* const send = std::get_if<SendPtr>(&each)) {
      (*send)->promise.set_result((*send)->result);
    } else {
      const ReceivePtr& receive = std::get<ReceivePtr>(each);
      receive->promise.set_result(receive->result);
    }
  }
  // Other threads may be asleep, waiting for what has just ended.
  if (sleepers_.load() > 0) ring(my_bell());
}

void LaneCore::abort(const absl::Status& reason) {
  Todos todos;
  {
    MutexLock lock(mutex_);
    Actions actions;
    aborted_ = true;
    matcher_.abort(kLaneChannel, reason, actions);
    apply_locked(std::move(actions), todos);
    std::vector<SendPtr> sends;
    for (const auto& [id, send] : sends_) sends.push_back(send);
    for (const SendPtr& send : sends) {
      // Its rank may be lost meanwhile.
      if (sends_.contains(send->id)) end_send_locked(send, reason, todos);
    }
    poll_locked(todos);
    arm_and_poll_locked(todos);
  }
  perform(todos);
}

void LaneCore::shutdown() {
  Todos todos;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    const absl::Status reason = absl::CancelledError("this rank has left the group");
    for (const auto& [id, send] : std::exchange(sends_, {})) finish_locked(send, reason, todos);
    for (const auto& [id, receive] : std::exchange(receives_, {})) finish_locked(receive, reason, todos);
    for (Peer& each : peers_) each.queue.clear();
    queued_ = 0;
    memory_->member(options_.rank).left.store(1);
  }
  for (int rank = 0; rank < options_.size; ++rank) ring(bell_of(rank));
  perform(todos);
  if (!thread_.joinable()) return;
  // A continuation that ran on the group's thread may be what leaves. The thread cannot wait for itself; it ends as soon as
  // the continuation has returned.
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace gradwire::collectives::cpu
