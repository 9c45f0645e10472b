// The operations of a WorldP2p, and how it starts and ends. The sending of the outboxes comes first.
// Every event has the same form: it changes the Endpoint under its lock and collects effects, and perform()
// carries them out without the lock (on_event). Events come from callers, from connections
// (RankLinks::Observer), from timers, and from the release of sent data (Release).

#include "gradwire/collectives/cpu/world_p2p/world_p2p_core.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_wire.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/shm/shm_transport.h"
#include "gradwire/transport/tcp/tcp_transport.h"

namespace gradwire::collectives::cpu {
namespace {

// An eager message of at most this size is copied as far as it has not been sent, so that the sender need not
// wait.
constexpr std::size_t kCapturedBytes = std::size_t{64} << 10;

}  // namespace

// The owner of the buffer that the transport reads. The transport destroys it when it needs the data no more.
// That may be after the WorldP2p has ended, so the pointer is weak.
class WorldP2pCore::Release {
 public:
  Release(std::weak_ptr<WorldP2pCore> core, uint64_t id) : core_(std::move(core)), id_(id) {}
  ~Release() {
    if (const std::shared_ptr<WorldP2pCore> core = core_.lock()) core->on_released(id_);
  }

 private:
  const std::weak_ptr<WorldP2pCore> core_;
  const uint64_t id_;
};

void WorldP2pCore::on_out(int rank, const ConnectionPtr& connection) {
  {
    MutexLock lock(mutex_);
    peer(rank).out = connection;
  }
  empty_outbox(rank);
}

// The fast path for short messages. It must not overtake an earlier message of this thread: those are in the
// outbox, or another thread is sending them (`sending`). The bytes are charged to the window under the lock,
// and given back if the transport refuses the message.
std::optional<absl::Status> WorldP2pCore::send_at_once(int dst, uint64_t channel, int64_t tag, Span data) {
  ConnectionPtr out;
  {
    MutexLock lock(mutex_);
    SendTable& sends = endpoint_.sends();
    if (data.size > kCapturedBytes || dst == options_.rank || !endpoint_.check(dst).ok() ||
        peer(dst).out == nullptr || peer(dst).sending || sends.outboxes().has(dst) ||
        !endpoint_.check_open(dst, channel).ok() || !sends.take_window(dst, data.size)) {
      return std::nullopt;
    }
    out = peer(dst).out;
  }
  const Frame frame{.kind = FrameKind::kEager, .channel = channel, .tag = tag, .size = data.size};
  absl::Status status = send_captured(*out, dst, frame, data);
  if (!status.ok()) {
    MutexLock lock(mutex_);
    endpoint_.sends().release_window(dst, data.size);
  }
  return status;
}

absl::Status WorldP2pCore::context(const absl::Status& status, uint64_t channel, int dst) {
  MutexLock lock(mutex_);
  return with_context(status, absl::StrCat("sending to ", endpoint_.channels().name_of(channel, dst)));
}

absl::Status WorldP2pCore::send_captured(transport::Connection& out, int dst, const Frame& frame, Span data) {
  const bool is_inline = data.size <= kInlineBytes;
  // capture() may wait, so a thread on duty makes a copy that the transport owns.
  const bool borrows = !is_inline && !on_duty();
  transport::Message message{encode_frame(frame, is_inline ? data.size : 0), {}};
  if (is_inline) {
    if (data.size > 0) message.header.append(static_cast<const char*>(data.data), data.size);
  } else if (borrows) {
    message.buffers.emplace_back(data.data, data.size, nullptr, transport::Buffer::Sharing::kBorrowed);
  } else {
    absl::StatusOr<transport::Buffer> copy = out.allocate(data.size);
    if (!copy.ok()) return context(copy.status(), frame.channel, dst);
    std::memcpy(copy->data(), data.data, data.size);
    message.buffers.push_back(*std::move(copy));
  }
  const absl::StatusOr<uint64_t> ticket = out.send(std::move(message));
  if (!ticket.ok()) return context(ticket.status(), frame.channel, dst);
  // capture() makes the transport copy the part that it has not sent yet. Afterwards it does not read the
  // caller's memory.
  if (borrows) out.capture(*ticket);
  return absl::OkStatus();
}

// One thread sends at a time, so the frames keep their order, although the lock is not held while a frame is
// sent. No entry is left behind: a thread that adds an entry calls this function afterwards. If it finds
// `sending`, the sending thread checks the outbox again, under the lock, after it has cleared `sending`.
void WorldP2pCore::empty_outbox(int dst) {
  while (true) {
    ConnectionPtr out;
    SendTable::Outgoing next;
    {
      MutexLock lock(mutex_);
      Peer& to = peer(dst);
      out = to.out;
      if (out != nullptr) {
        if (to.sending) return;
        if (!endpoint_.sends().outboxes().has(dst)) return;
        to.sending = true;
        next = endpoint_.sends().take(dst);
      }
    }
    // The entries wait in the outbox. on_out() calls this function again.
    if (out == nullptr) {
      links_->request_connection(dst);
      return;
    }
    const absl::Cleanup sent = [this, dst] {
      MutexLock lock(mutex_);
      peer(dst).sending = false;
    };
    transmit(out, next);
  }
}

void WorldP2pCore::transmit(const ConnectionPtr& out, const SendTable::Outgoing& next) {
  const SendPtr& send = next.send;
  if (send != nullptr && next.frame.kind != FrameKind::kRts &&
      !(next.frame.kind == FrameKind::kEager && send->data.size <= kCapturedBytes)) {
    transmit_data(out, next);
    return;
  }
  absl::Status status;
  if (next.frame.kind == FrameKind::kEager) {
    status = send_captured(*out, send->peer, next.frame, send->data);
  } else {
    status = out->send({encode_frame(next.frame), {}}).status();
    if (!status.ok() && send != nullptr) status = context(status, send->channel, send->peer);
  }
  // The frame is an answer or a kCancel: no operation waits for it.
  if (send == nullptr) return;
  Effects effects;
  {
    MutexLock lock(mutex_);
    if (next.frame.kind == FrameKind::kRts) {
      endpoint_.sends().rts_sent(send, status, effects);
    } else if (status.ok()) {
      endpoint_.sends().sent(send, effects);
    } else {
      endpoint_.sends().unsent(send, /*known=*/false, status, effects);
    }
  }
  perform(std::move(effects));
}

// The transport may release the data, and the message may end, before send() has returned the ticket. So:
// 1. Enter the message in reading_, without a ticket.
// 2. Hand the data to the transport.
// 3. With the lock held, handle what has happened meanwhile: the transport failed, it has released the data,
//    or the message has ended. Otherwise store the ticket, for retract() and on_released().
void WorldP2pCore::transmit_data(const ConnectionPtr& out, const SendTable::Outgoing& next) {
  const SendPtr& send = next.send;
  transport::Message message{encode_frame(next.frame), {}};
  if (send->data.size > 0) {
    message.buffers.emplace_back(send->data.data, send->data.size,
                                 std::make_shared<Release>(weak_from_this(), send->id),
                                 transport::Buffer::Sharing::kBorrowed);
  }
  {
    MutexLock lock(mutex_);
    reading_[send->id] = {.connection = out};
  }
  const absl::StatusOr<uint64_t> ticket = out->send(std::move(message));
  const absl::Status status =
      ticket.ok() ? absl::OkStatus() : context(ticket.status(), send->channel, send->peer);
  bool retracted = false;
  Effects effects;
  {
    MutexLock lock(mutex_);
    const auto entry = reading_.find(send->id);
    if (!status.ok()) {
      // If the connection stays open, the receiver must not wait for the data.
      endpoint_.sends().unsent(send, /*known=*/next.frame.kind == FrameKind::kData, status, effects);
    } else if (send->data.size == 0 || entry->second.released) {
      endpoint_.sends().sent(send, effects);
    } else {
      entry->second.ticket = *ticket;
      // The message may have ended while the transport took it.
      retracted = !send->ended.ok();
    }
    if (!endpoint_.sends().contains(*send)) reading_.erase(entry);
  }
  if (retracted) retract(send, effects);
  perform(std::move(effects));
}

// Runs on the thread that destroys the buffer, which may be in the transport or inside out->send(). The
// message may have ended before; then the entry is missing.
void WorldP2pCore::on_released(uint64_t id) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    const auto entry = reading_.find(id);
    if (entry == reading_.end()) return;
    entry->second.released = true;
    // The thread in transmit_data() has not stored the ticket yet. It will see `released`.
    if (!entry->second.ticket.has_value()) return;
    reading_.erase(entry);
    if (const SendPtr send = endpoint_.sends().find(id)) endpoint_.sends().sent(send, effects);
  }
  perform(std::move(effects));
}

void WorldP2pCore::retract(const SendPtr& send, Effects& effects) {
  ConnectionPtr connection;
  uint64_t ticket = 0;
  {
    MutexLock lock(mutex_);
    const auto entry = reading_.find(send->id);
    // Without a ticket, the thread in transmit_data() sees that the message has ended.
    if (entry == reading_.end() || !entry->second.ticket.has_value()) return;
    connection = entry->second.connection;
    ticket = *entry->second.ticket;
    reading_.erase(entry);
  }
  // capture() may wait and copy much.
  if (on_duty() && connection->borrows(ticket)) {
    executor_->post_or_run([self = shared_from_this(), send, connection, ticket] {
      Effects later;
      self->end_reading(send, *connection, ticket, later);
      self->perform(std::move(later));
    });
    return;
  }
  end_reading(send, *connection, ticket, effects);
}

// Without the lock: capture() may release the data, which calls on_released(). The entry in `reading_` is
// gone already, so that call does nothing, and the message ends here.
void WorldP2pCore::end_reading(const SendPtr& send, transport::Connection& connection, uint64_t ticket,
                               Effects& effects) {
  if (!on_duty()) connection.capture(ticket);
  MutexLock lock(mutex_);
  endpoint_.sends().released(send, effects);
}

namespace {

// One thread for the user's callbacks, and one that finds ranks in the store.
constexpr int kThreads = 2;
// Limit for answers that a rank has not read. Answers to all RTS that it may have pending are far below it.
constexpr std::size_t kMaxUnreadAnswers = 2 * kMaxPendingRts * kFrameBytes;

absl::StatusOr<std::vector<std::unique_ptr<transport::Transport>>> make_transports(
    const WorldP2p::Options& options, const std::shared_ptr<transport::EventLoop>& loop) {
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
      // A shortage passes. The group must not do without shared memory until its end.
      if (is_local_shortage(shm_status)) return with_context(shm_status, "cannot set up shared memory");
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

absl::StatusOr<std::shared_ptr<WorldP2p>> WorldP2p::create(Options options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid rank ", options.rank, " in a world of ", options.size));
  }
  if (options.store == nullptr) return absl::InvalidArgumentError("WorldP2p needs a store");
  auto core = std::make_shared<WorldP2pCore>(std::move(options));
  GRADWIRE_RETURN_IF_ERROR(core->start());
  // Operations in progress own the core, not this pointer. When the last user releases the pointer, the core
  // shuts down.
  return std::shared_ptr<WorldP2p>(core.get(), [core, mark = ProcessMark()](WorldP2p*) mutable {
    if (mark.here()) {
      core->shutdown();
    } else {
      leak_after_fork(core);
    }
  });
}

WorldP2pCore::WorldP2pCore(WorldP2p::Options options)
    : options_(std::move(options)),
      endpoint_({.rank = options_.rank, .size = options_.size, .eager_bytes = options_.eager_bytes}),
      peers_(static_cast<std::size_t>(options_.size)) {}

WorldP2pCore::~WorldP2pCore() { shutdown(); }

absl::Status WorldP2pCore::check_size(Span data) const {
  if (data.size <= options_.limits.max_buffer_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a message of ", data.size, " bytes is over the limit of ",
                                                 options_.limits.max_buffer_bytes));
}

absl::Status WorldP2pCore::start() {
  GRADWIRE_ASSIGN_OR_RETURN(loop_, transport::EventLoop::create());
  ThreadPool::Options threads;
  threads.num_threads = kThreads;
  threads.name = "world_p2p";
  threads.poller = loop_;
  GRADWIRE_ASSIGN_OR_RETURN(executor_, make_with_threads<ThreadPool>(threads));
  GRADWIRE_ASSIGN_OR_RETURN(timers_, make_with_threads<TimerQueue>());
  links_ = std::make_unique<RankLinks>(options_, *this, *executor_, *timers_);
  GRADWIRE_ASSIGN_OR_RETURN(auto transports, make_transports(options_, loop_));
  return links_->start(std::move(transports));
}

Future<void> WorldP2pCore::send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  std::optional<absl::Status> sent;
  if (absl::Status too_large = check_size(data); !too_large.ok()) {
    sent = std::move(too_large);
  } else {
    sent = send_at_once(dst, channel, tag, data);
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
    MutexLock lock(mutex_);
    endpoint_.send(send, effects);
    // A send that has ended at once needs no deadline. on_cancel() cannot run the callback here, with the
    // lock held: nobody else has the future yet.
    if (endpoint_.sends().contains(*send)) watch_locked(send);
  }
  perform(std::move(effects));
  return future;
}

Future<int> WorldP2pCore::receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  if (absl::Status too_large = check_size(data); !too_large.ok()) {
    Promise<int> promise(executor_);
    promise.set_error(std::move(too_large));
    return promise.future();
  }
  const auto receive = std::make_shared<Receive>(executor_, src, channel, tag, data, deadline);
  Future<int> future = receive->promise.future();
  Effects effects;
  {
    MutexLock lock(mutex_);
    endpoint_.receive(receive, effects);
    if (endpoint_.contains(*receive)) watch_locked(receive);
  }
  perform(std::move(effects));
  return future;
}

template <typename Event>
void WorldP2pCore::on_event(Event event) {
  Effects effects;
  {
    MutexLock lock(mutex_);
    event(endpoint_, effects);
  }
  perform(std::move(effects));
}

template <typename OperationPtr>
void WorldP2pCore::watch_locked(const OperationPtr& operation) {
  // A weak pointer: the core owns the operation, and the operation owns this callback.
  operation->promise.on_cancel([core = weak_from_this(), operation] {
    if (const std::shared_ptr<WorldP2pCore> self = core.lock()) self->cancel(operation);
  });
  schedule_expiry_locked(operation->deadline);
}

template <typename OperationPtr>
void WorldP2pCore::cancel(const OperationPtr& operation) {
  on_event([&](Endpoint& state, Effects& effects) {
    state.end(operation, absl::CancelledError("cancelled by the caller"), effects);
  });
  // Another thread may still use the operation's memory. The caller may reuse it when this function returns,
  // so wait until `done` is set.
  // perform() sets `done` and then reads waiters_; this thread increments waiters_ and then reads `done`. So
  // either perform() notifies, or this thread does not wait.
  waiters_.fetch_add(1);
  if (!operation->done.load()) {
    const BlockingScope blocking;
    MutexLock lock(mutex_);
    while (!operation->done.load()) changed_.wait(mutex_);
  }
  waiters_.fetch_sub(1);
}

// A timer stays scheduled when the operation ends. Then expire() finds nothing, and schedules the next
// deadline. Cancelling a timer for every operation would cost more.
void WorldP2pCore::schedule_expiry_locked(absl::Time deadline) {
  if (deadline >= next_expiry_) return;
  timers_->schedule(deadline, [this] { expire(); });
  next_expiry_ = deadline;
}

void WorldP2pCore::expire() {
  Effects effects;
  {
    MutexLock lock(mutex_);
    endpoint_.expire(timers_->clock().now(), effects);
    next_expiry_ = absl::InfiniteFuture();
  }
  // First, so that they end even if the next timer cannot be scheduled. This one then runs again.
  perform(std::move(effects));
  MutexLock lock(mutex_);
  schedule_expiry_locked(endpoint_.next_deadline());
}

void WorldP2pCore::abort(uint64_t channel, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.abort(channel, reason, effects); });
}

void WorldP2pCore::forget(uint64_t channel) {
  on_event([&](Endpoint& state, Effects& effects) { state.forget(channel, effects); });
}

void WorldP2pCore::name_ranks(uint64_t channel, HashMap<int, int> names) {
  MutexLock lock(mutex_);
  endpoint_.channels().name_ranks(channel, std::move(names));
}

// Performs the effects in three passes:
// 1. Release the memory of operations that have ended. It comes first, because a continuation that runs in
//    step 2 may wait for the end of another operation.
// 2. Complete the futures.
// 3. Empty the outboxes, which may take long.
void WorldP2pCore::perform(Effects effects) {
  using Kind = Effect::Kind;
  for (std::size_t i = 0; i < effects.size(); ++i) {
    Effect& effect = effects[i];
    if (effect.kind == Kind::kDeliver) take_payload(effect);
    if (effect.receive != nullptr && effect.kind != Kind::kCts) effect.receive->done.store(true);
    if (effect.kind == Kind::kEndSend) effect.send->done.store(true);
    if (effect.kind == Kind::kCts || effect.kind == Kind::kReply) reply(effect.rank, effect.frame);
    // This may append to `effects`.
    if (effect.kind == Kind::kRetract) retract(SendPtr(effect.send), effects);
  }
  if (waiters_.load() > 0) {
    MutexLock lock(mutex_);
    changed_.notify_all();
  }
  for (Effect& effect : effects) {
    if (effect.kind == Kind::kDeliver) effect.receive->promise.set_result(effect.rank);
    if (effect.kind == Kind::kEndReceive) effect.receive->promise.set_error(std::move(effect.status));
    if (effect.kind == Kind::kEndSend) effect.send->promise.set_result(std::move(effect.status));
  }
  for (const Effect& effect : effects) {
    if (effect.kind == Kind::kWake) empty_outbox(effect.rank);
  }
}

// Answers go over the incoming connection, which carries only answers in this direction. They need no outbox,
// because their order relative to messages of this rank does not matter.
void WorldP2pCore::reply(int rank, const Frame& frame) {
  ConnectionPtr in;
  {
    MutexLock lock(mutex_);
    in = peer(rank).in;
  }
  if (in == nullptr) return;
  if (in->queued_bytes() > kMaxUnreadAnswers) {
    in->close(absl::InvalidArgumentError("it sends RTS frames but does not read the answers"));
    return;
  }
  // If this fails, the rank is about to be lost, and all operations that wait for it fail.
  (void)in->send({encode_frame(frame), {}});
}

void WorldP2pCore::on_in(int rank, const ConnectionPtr& connection) {
  MutexLock lock(mutex_);
  peer(rank).in = connection;
}

absl::Status WorldP2pCore::on_frame(int rank, bool in, const Frame& frame, transport::Message message) {
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

void WorldP2pCore::on_out_closed(int rank, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.fail_sends(rank, reason, effects); });
}

void WorldP2pCore::on_lost(int rank, const absl::Status& reason) {
  on_event([&](Endpoint& state, Effects& effects) { state.lose(rank, reason, effects); });
}

// The order matters:
// 1. Close the endpoint, so that operations fail with this reason and not with that of a closed connection.
// 2. Send kGoodbye and close the connections. The loop must still run for that.
// 3. Stop the threads of the callbacks, then the timers, which call expire().
// 4. End the loop. No other thread runs it any more, so this thread runs it until it has ended.
void WorldP2pCore::shutdown() {
  std::call_once(shut_down_, [this] {
    const absl::Status reason = absl::CancelledError("the process group was destroyed");
    on_event([&](Endpoint& state, Effects& effects) { state.close(reason, effects); });
    if (links_ != nullptr) links_->shutdown(reason);
    if (executor_ != nullptr) executor_->shutdown();
    if (timers_ != nullptr) timers_->shutdown();
    if (loop_ != nullptr) transport::end(*loop_);
  });
}

}  // namespace gradwire::collectives::cpu
