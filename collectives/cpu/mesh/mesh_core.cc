#include "gradwire/collectives/cpu/mesh/mesh_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::collectives::cpu {
namespace {

// For callbacks of who uses the mesh, and for the one that looks for ranks.
constexpr int kThreads = 2;
// Answers that a rank has not read. Those to all that it may announce are far less.
constexpr std::size_t kMaxUnreadAnswers = 2 * kMaxPendingRts * kFrameBytes;

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const Mesh::Options& options, const std::shared_ptr<transport::EventLoop>& loop) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  // What no frame has, a stranger cannot make this rank hold.
  Limits limits = options.limits;
  limits.max_header_bytes = std::min(limits.max_header_bytes, kMaxHeaderBytes);
  limits.max_buffers = 1;
  const bool chosen = !options.transports.empty();
  absl::Status shm_works;
  for (const std::string& name : chosen ? options.transports : std::vector<std::string>{"shm", "tcp"}) {
    if (name == "shm") {
      shm_works = transport::probe_shm();
      if (!shm_works.ok()) {
        log(LogLevel::kWarning, "shared memory between ranks does not work here: ", shm_works.message());
        continue;
      }
      transport::ShmOptions shm;
      shm.limits = limits;
      transports.push_back(transport::make_shm_transport(std::move(shm), loop));
    } else if (name == "tcp") {
      transport::TcpOptions tcp;
      tcp.limits = limits;
      transports.push_back(transport::make_tcp_transport(std::move(tcp), loop));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport \"", name, "\"; there are \"shm\" and \"tcp\""));
    }
  }
  if (transports.empty()) return with_context(shm_works, "the transport \"shm\" does not work here");
  return transports;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Mesh>> Mesh::create(Options options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a world of ", options.size));
  }
  if (options.store == nullptr) return absl::InvalidArgumentError("a mesh needs a store");
  const auto core = std::make_shared<MeshCore>(std::move(options));
  GRADWIRE_RETURN_IF_ERROR(core->start());
  // Ends the core when its user lets go; what is under way refers to the core alone.
  return std::shared_ptr<Mesh>(core.get(), [core](Mesh*) { core->shutdown(); });
}

MeshCore::MeshCore(Mesh::Options options)
    : options_(std::move(options)),
      endpoint_({.rank = options_.rank, .size = options_.size, .eager_bytes = options_.eager_bytes}),
      sender_(*this, endpoint_, options_.rank, options_.size),
      in_(static_cast<std::size_t>(options_.size)) {}

MeshCore::~MeshCore() { shutdown(); }

absl::Status MeshCore::check_size(Span data) const {
  if (data.size <= options_.limits.max_buffer_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a message of ", data.size, " bytes is over the limit of ",
                                                 options_.limits.max_buffer_bytes));
}

absl::Status MeshCore::start() {
  GRADWIRE_ASSIGN_OR_RETURN(loop_, transport::EventLoop::create());
  ThreadPool::Options threads;
  threads.num_threads = kThreads;
  threads.name = "mesh";
  threads.poller = loop_;
  executor_ = std::make_shared<ThreadPool>(threads);
  timers_ = std::make_unique<TimerQueue>();
  links_ = std::make_unique<MeshLinks>(options_, *this, *executor_, *timers_);
  GRADWIRE_ASSIGN_OR_RETURN(auto transports, make_transports(options_, loop_));
  return links_->start(std::move(transports));
}

Future<void> MeshCore::send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  std::optional<absl::Status> sent;
  if (absl::Status large = check_size(data); !large.ok()) {
    sent = std::move(large);
  } else {
    sent = sender_.send_at_once(dst, channel, tag, data);
  }
  if (sent.has_value()) {
    Promise<void> promise(executor_);
    promise.set_result(*std::move(sent));
    return promise.future();
  }
  const auto send = std::make_shared<Send>(executor_, dst, channel, tag, data, deadline);
  Future<void> future = send->promise.future();
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    endpoint_.state.send(send, effects);
    if (endpoint_.state.sends().contains(*send)) watch_locked(send);
  }
  perform(std::move(effects));
  return future;
}

Future<int> MeshCore::receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  if (absl::Status large = check_size(data); src != kAnyRank && !large.ok()) {
    Promise<int> promise(executor_);
    promise.set_error(std::move(large));
    return promise.future();
  }
  const auto receive = std::make_shared<Receive>(executor_, src, channel, tag, data, deadline);
  Future<int> future = receive->promise.future();
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    endpoint_.state.receive(receive, effects);
    if (endpoint_.state.contains(*receive)) watch_locked(receive);
  }
  perform(std::move(effects));
  return future;
}

template <typename Event>
void MeshCore::on_event(Event event) {
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    event(endpoint_.state, effects);
  }
  perform(std::move(effects));
}

template <typename OperationPtr>
void MeshCore::watch_locked(const OperationPtr& operation) {
  operation->promise.on_cancel([core = weak_from_this(), operation] {
    if (const std::shared_ptr<MeshCore> self = core.lock()) self->cancel(operation);
  });
  alarm_at_locked(operation->deadline);
}

template <typename OperationPtr>
void MeshCore::cancel(const OperationPtr& operation) {
  on_event([&](Endpoint& state, Effects& effects) {
    state.end(operation, absl::CancelledError("cancelled by the caller"), effects);
  });
  // Somebody may be using its memory, which the caller takes to be its own again.
  waiters_.fetch_add(1);
  {
    MutexLock lock(endpoint_.mutex);
    while (!operation->done.load()) changed_.wait(endpoint_.mutex);
  }
  waiters_.fetch_sub(1);
}

void MeshCore::alarm_at_locked(absl::Time deadline) {
  if (deadline >= alarm_) return;
  alarm_ = deadline;
  timers_->schedule(deadline, [this] { expire(); });
}

void MeshCore::expire() {
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    endpoint_.state.expire(timers_->clock().now(), effects);
    alarm_ = absl::InfiniteFuture();
    alarm_at_locked(endpoint_.state.next_deadline());
  }
  perform(std::move(effects));
}

void MeshCore::abort(uint64_t channel, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.abort(channel, reason, effects); });
}

void MeshCore::forget(uint64_t channel) {
  on_event([&](Endpoint& state, Effects& effects) { state.forget(channel, effects); });
}

void MeshCore::name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) {
  MutexLock lock(endpoint_.mutex);
  endpoint_.state.channels().name_ranks(channel, std::move(names));
}

// Three passes: 1. memory is released, so that what is continued after an operation may wait for the end of
// another one;
// 2. futures are completed; 3. outboxes are emptied, which may take long.
void MeshCore::perform(Effects effects) {
  using Kind = Effect::Kind;
  for (std::size_t i = 0; i < effects.size(); ++i) {
    Effect& effect = effects[i];
    if (effect.kind == Kind::kDeliver) take_payload(effect);
    if (effect.receive != nullptr && effect.kind != Kind::kClear) effect.receive->done.store(true);
    if (effect.kind == Kind::kEndSend) effect.send->done.store(true);
    if (effect.kind == Kind::kClear || effect.kind == Kind::kReply) reply(effect.rank, effect.frame);
    // Adds to the effects.
    if (effect.kind == Kind::kRetract) sender_.retract(SendPtr(effect.send), effects);
  }
  if (waiters_.load() > 0) {
    MutexLock lock(endpoint_.mutex);
    changed_.notify_all();
  }
  for (Effect& effect : effects) {
    if (effect.kind == Kind::kDeliver) effect.receive->promise.set_result(effect.rank);
    if (effect.kind == Kind::kEndReceive) effect.receive->promise.set_error(std::move(effect.status));
    if (effect.kind == Kind::kEndSend) effect.send->promise.set_result(std::move(effect.status));
  }
  for (const Effect& effect : effects) {
    if (effect.kind == Kind::kWake) sender_.empty_outbox(effect.rank);
  }
}

void MeshCore::connect(int rank) { links_->want(rank); }

std::weak_ptr<MeshSender> MeshCore::sender() {
  return std::shared_ptr<MeshSender>(weak_from_this().lock(), &sender_);
}

void MeshCore::reply(int rank, const Frame& frame) {
  ConnectionPtr in;
  {
    MutexLock lock(endpoint_.mutex);
    in = in_[static_cast<std::size_t>(rank)];
  }
  if (in == nullptr) return;
  if (in->queued_bytes() > kMaxUnreadAnswers) {
    in->close(absl::InvalidArgumentError("it announces messages, and reads no answers"));
    return;
  }
  // When it cannot be sent the rank is about to be lost, and all that waits for it fails.
  (void)in->send({encode_frame(frame), {}});
}

void MeshCore::on_in(int rank, const ConnectionPtr& connection) {
  MutexLock lock(endpoint_.mutex);
  in_[static_cast<std::size_t>(rank)] = connection;
}

void MeshCore::on_out(int rank, const ConnectionPtr& connection) { sender_.set_connection(rank, connection); }

absl::Status MeshCore::on_frame(int rank, bool in, const Frame& frame, transport::Message message) {
  const bool answer =
      frame.kind == FrameKind::kCts || frame.kind == FrameKind::kNack || frame.kind == FrameKind::kCredit;
  if (in == answer) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of kind ", static_cast<int>(frame.kind),
                                                   " is not the ", in ? "sender's" : "receiver's"));
  }
  absl::Status status;
  on_event([&](Endpoint& state, Effects& effects) {
    status = state.on_frame(rank, frame, Payload(std::move(message), kFrameBytes), effects);
  });
  return status;
}

void MeshCore::on_out_closed(int rank, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.fail_sends(rank, reason, effects); });
}

void MeshCore::on_lost(int rank, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.lose(rank, reason, effects); });
}

void MeshCore::shutdown() {
  std::call_once(shut_down_, [this] {
    const absl::Status reason = absl::CancelledError("the mesh was shut down");
    on_event([&](Endpoint& state, Effects& effects) { state.close(reason, effects); });
    if (links_ != nullptr) links_->shutdown(reason);
    if (executor_ != nullptr) executor_->shutdown();
    if (timers_ != nullptr) timers_->shutdown();
    if (loop_ != nullptr) {
      loop_->post([loop = loop_.get()] { loop->end_in_loop(); });
      loop_->run_until([this] { return loop_->ended(); });
    }
  });
}

}  // namespace gradwire::collectives::cpu
