// The operations of a Mesh, and how it starts and ends. Every event has the same form: it changes the
// Endpoint under its lock and collects effects, and perform() carries them out without the lock (on_event).
// Events come from callers, from connections (MeshLinks::Observer), from timers, and from the release of sent
// data (MeshSender).

#include "gradwire/collectives/cpu/mesh/mesh_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::collectives::cpu {
namespace {

// One thread for the user's callbacks, and one that finds ranks in the store.
constexpr int kThreads = 2;
// Limit for answers that a rank has not read. Answers to all RTS that it may have pending are far below it.
constexpr std::size_t kMaxUnreadAnswers = 2 * kMaxPendingRts * kFrameBytes;

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const Mesh::Options& options, const std::shared_ptr<transport::EventLoop>& loop) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  // These limits bound the memory that a stranger can make this rank allocate: they allow no more than a
  // frame needs.
  Limits limits = options.limits;
  limits.max_header_bytes = std::min(limits.max_header_bytes, kMaxHeaderBytes);
  limits.max_buffers = 1;
  const bool chosen = !options.transports.empty();
  absl::Status shm_status;
  for (const std::string& name : chosen ? options.transports : std::vector<std::string>{"shm", "tcp"}) {
    if (name == "shm") {
      shm_status = transport::probe_shm();
      if (!shm_status.ok()) {
        log(LogLevel::kWarning,
            "the transport \"shm\" is not available on this host: ", shm_status.message());
        continue;
      }
      transport::ShmOptions shm;
      shm.limits = limits;
      shm.allowed_users = options.allowed_users;
      transports.push_back(transport::make_shm_transport(std::move(shm), loop));
    } else if (name == "tcp") {
      transport::TcpOptions tcp;
      tcp.limits = limits;
      tcp.credentials = options.credentials;
      tcp.purpose = "group";
      tcp.allowed_users = options.allowed_users;
      tcp.own_name = absl::StrCat("rank ", options.rank);
      transports.push_back(transport::make_tcp_transport(std::move(tcp), loop));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport \"", name, "\": expected \"shm\" or \"tcp\""));
    }
  }
  if (transports.empty())
    return with_context(shm_status, "the transport \"shm\" is not available on this host");
  return transports;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Mesh>> Mesh::create(Options options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid rank ", options.rank, " in a world of ", options.size));
  }
  if (options.store == nullptr) return absl::InvalidArgumentError("a mesh needs a store");
  const auto core = std::make_shared<MeshCore>(std::move(options));
  GRADWIRE_RETURN_IF_ERROR(core->start());
  // Operations in progress own the core, not this pointer. When the last user releases the pointer, the core
  // shuts down.
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
  if (absl::Status too_large = check_size(data); !too_large.ok()) {
    sent = std::move(too_large);
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
    // A send that has ended at once needs no deadline. on_cancel() cannot run the callback here, with the
    // lock held: nobody else has the future yet.
    if (endpoint_.state.sends().contains(*send)) watch_locked(send);
  }
  perform(std::move(effects));
  return future;
}

Future<int> MeshCore::receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  if (absl::Status too_large = check_size(data); !too_large.ok()) {
    Promise<int> promise(executor_);
    promise.set_error(std::move(too_large));
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
  // A weak pointer: the core owns the operation, and the operation owns this callback.
  operation->promise.on_cancel([core = weak_from_this(), operation] {
    if (const std::shared_ptr<MeshCore> self = core.lock()) self->cancel(operation);
  });
  schedule_expiry_locked(operation->deadline);
}

template <typename OperationPtr>
void MeshCore::cancel(const OperationPtr& operation) {
  on_event([&](Endpoint& state, Effects& effects) {
    state.end(operation, absl::CancelledError("cancelled by the caller"), effects);
  });
  // Another thread may still use the operation's memory. The caller may reuse it when this function returns,
  // so wait until `done` is set.
  // perform() sets `done` and then reads waiters_; this thread increments waiters_ and then reads `done`. So
  // either perform() notifies, or this thread does not wait.
  waiters_.fetch_add(1);
  {
    MutexLock lock(endpoint_.mutex);
    while (!operation->done.load()) changed_.wait(endpoint_.mutex);
  }
  waiters_.fetch_sub(1);
}

// A timer stays scheduled when the operation ends. Then expire() finds nothing, and schedules the next
// deadline. Cancelling a timer for every operation would cost more.
void MeshCore::schedule_expiry_locked(absl::Time deadline) {
  if (deadline >= next_expiry_) return;
  next_expiry_ = deadline;
  timers_->schedule(deadline, [this] { expire(); });
}

void MeshCore::expire() {
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    endpoint_.state.expire(timers_->clock().now(), effects);
    next_expiry_ = absl::InfiniteFuture();
    schedule_expiry_locked(endpoint_.state.next_deadline());
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

// Performs the effects in three passes:
// 1. Release the memory of operations that have ended. It comes first, because a continuation that runs in
//    step 2 may wait for the end of another operation.
// 2. Complete the futures.
// 3. Empty the outboxes, which may take long.
void MeshCore::perform(Effects effects) {
  using Kind = Effect::Kind;
  for (std::size_t i = 0; i < effects.size(); ++i) {
    Effect& effect = effects[i];
    if (effect.kind == Kind::kDeliver) take_payload(effect);
    if (effect.receive != nullptr && effect.kind != Kind::kCts) effect.receive->done.store(true);
    if (effect.kind == Kind::kEndSend) effect.send->done.store(true);
    if (effect.kind == Kind::kCts || effect.kind == Kind::kReply) reply(effect.rank, effect.frame);
    // This may append to `effects`.
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

void MeshCore::connect(int rank) { links_->request_connection(rank); }

std::weak_ptr<MeshSender> MeshCore::sender() {
  return std::shared_ptr<MeshSender>(weak_from_this().lock(), &sender_);
}

// Answers go over the incoming connection, which carries only answers in this direction. They need no outbox,
// because their order relative to messages of this rank does not matter.
void MeshCore::reply(int rank, const Frame& frame) {
  ConnectionPtr in;
  {
    MutexLock lock(endpoint_.mutex);
    in = in_[static_cast<std::size_t>(rank)];
  }
  if (in == nullptr) return;
  if (in->queued_bytes() > kMaxUnreadAnswers) {
    in->close(absl::InvalidArgumentError("it sends RTS frames but does not read the answers"));
    return;
  }
  // If this fails, the rank is about to be lost, and all operations that wait for it fail.
  (void)in->send({encode_frame(frame), {}});
}

void MeshCore::on_in(int rank, const ConnectionPtr& connection) {
  MutexLock lock(endpoint_.mutex);
  in_[static_cast<std::size_t>(rank)] = connection;
}

void MeshCore::on_out(int rank, const ConnectionPtr& connection) { sender_.set_connection(rank, connection); }

absl::Status MeshCore::on_frame(int rank, bool in, const Frame& frame, transport::Message message) {
  // The sender of a connection sends only messages, and the receiver only answers.
  const bool answer =
      frame.kind == FrameKind::kCts || frame.kind == FrameKind::kNack || frame.kind == FrameKind::kCredit;
  if (in == answer) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected frame of kind ", static_cast<int>(frame.kind),
                                                   " from the ", in ? "sender" : "receiver",
                                                   " of the connection"));
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

// The order matters:
// 1. Close the endpoint, so that operations fail with this reason and not with that of a closed connection.
// 2. Send kGoodbye and close the connections. The loop must still run for that.
// 3. Stop the threads of the callbacks, then the timers, which call expire().
// 4. End the loop. No other thread runs it any more, so this thread runs it until it has ended.
void MeshCore::shutdown() {
  std::call_once(shut_down_, [this] {
    const absl::Status reason = absl::CancelledError("the mesh was shut down");
    on_event([&](Endpoint& state, Effects& effects) { state.close(reason, effects); });
    if (links_ != nullptr) links_->shutdown(reason);
    if (executor_ != nullptr) executor_->shutdown();
    if (timers_ != nullptr) timers_->shutdown();
    if (loop_ != nullptr) transport::end(*loop_);
  });
}

}  // namespace gradwire::collectives::cpu
