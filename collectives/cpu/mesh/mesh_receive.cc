// The part of MeshCore that receives, and hears what comes on its connections.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/collectives/cpu/mesh/mesh_core.h"

namespace gradwire::collectives::cpu {

Future<int> MeshCore::receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  auto receive = std::make_shared<Receive>(executor_);
  Future<int> future = receive->promise.future();
  absl::Status refused = src == kAnyRank ? absl::OkStatus() : check(src, data);
  Todos todos;
  if (refused.ok()) {
    receive->src = src;
    receive->channel = channel;
    receive->tag = tag;
    receive->data = data;
    receive->deadline = deadline;
    receive->core = weak_from_this();
    MutexLock lock(mutex_);
    if (closed_) {
      refused = absl::CancelledError("the mesh was shut down");
    } else {
      const uint64_t id = receive->id = next_id_++;
      receives_.emplace(id, receive);
      Matcher::Actions actions;
      matcher_.post(id, src, channel, tag, data.size, actions);
      todos = take_locked(std::move(actions));
      if (receives_.contains(id)) {
        receive->promise.on_cancel([receive] {
          if (const std::shared_ptr<MeshCore> self = receive->core.lock()) self->cancel_receive(*receive);
        });
        watch_locked(deadline);
      }
    }
  }
  if (!refused.ok()) receive->promise.set_error(std::move(refused));
  perform(std::move(todos));
  return future;
}

MeshCore::Todos MeshCore::take_locked(Matcher::Actions actions) {
  using Kind = Matcher::Action::Kind;
  Todos todos;
  for (Matcher::Action& action : actions) {
    Todo& todo = todos.emplace_back();
    if (action.kind == Kind::kDeliver || action.kind == Kind::kFail) {
      auto found = receives_.find(action.receive);
      if (found != receives_.end()) {
        todo.receive = std::move(found->second);
        receives_.erase(found);
      }
    } else if (action.src != options_.rank) {
      todo.link = peer(action.src).in;
    } else if (action.kind == Kind::kCredit) {
      peer(action.src).eager_bytes -= action.bytes;
    }
    todo.action = std::move(action);
  }
  return todos;
}

void MeshCore::perform(Todos todos) {
  using Kind = Matcher::Action::Kind;
  for (Todo& todo : todos) {
    Matcher::Action& action = todo.action;
    Frame frame;
    switch (action.kind) {
      case Kind::kDeliver:
        if (todo.receive == nullptr) continue;
        if (action.payload.size() > 0)
          std::memcpy(todo.receive->data.data, action.payload.data(), action.payload.size());
        finish_receive(*todo.receive, action.src);
        continue;
      case Kind::kFail:
        if (todo.receive != nullptr) finish_receive(*todo.receive, std::move(action.status));
        continue;
      case Kind::kAsk:
        if (action.src == options_.rank) send_to_own_receive(action.message);
        frame = {.kind = FrameKind::kAsk, .id = action.message};
        break;
      case Kind::kRefuse:
        if (action.src == options_.rank)
          on_refuse(action.src, action.message, action.status.code(), action.bytes);
        frame = {.kind = FrameKind::kRefuse,
                 .code = static_cast<uint32_t>(action.status.code()),
                 .size = action.bytes,
                 .id = action.message};
        break;
      case Kind::kCredit:
        frame = {.kind = FrameKind::kCredit, .size = action.bytes};
        break;
    }
    // When it cannot be sent the rank is about to be lost, and all that waits for it fails.
    if (todo.link != nullptr) (void)todo.link->connection->send({encode_frame(frame), {}});
  }
}

void MeshCore::finish_receive(Receive& receive, absl::StatusOr<int> result) {
  receive.done.store(true);
  if (receive.awaited.load()) {
    MutexLock lock(mutex_);
    changed_.notify_all();
  }
  receive.promise.set_result(std::move(result));
}

void MeshCore::end_receive(uint64_t id, absl::Status status) {
  std::shared_ptr<Receive> receive;
  {
    MutexLock lock(mutex_);
    auto found = receives_.find(id);
    if (found == receives_.end()) return;
    receive = std::move(found->second);
    receives_.erase(found);
    matcher_.cancel(id);
  }
  finish_receive(*receive, std::move(status));
}

void MeshCore::cancel_receive(Receive& receive) {
  MutexLock lock(mutex_);
  if (receives_.erase(receive.id) > 0) {
    matcher_.cancel(receive.id);
    return;
  }
  // Somebody writes to its memory, which the caller will believe to be his own.
  receive.awaited.store(true);
  while (!receive.done.load()) changed_.wait(mutex_);
}

void MeshLink::on_message(transport::Connection& connection, transport::Message message) {
  core_.on_message(shared_from_this(), connection, std::move(message));
}

void MeshCore::on_message(const std::shared_ptr<MeshLink>& link, transport::Connection& connection,
                          transport::Message message) {
  absl::Status status;
  if (const absl::StatusOr<Frame> frame = parse_frame(message); !frame.ok()) {
    status = frame.status();
  } else if (frame->kind == FrameKind::kGoodbye) {
    MutexLock lock(mutex_);
    link->left = true;
  } else {
    status = link->made_here() ? hear_receiver(link, *frame) : hear_sender(link, *frame, std::move(message));
  }
  if (status.ok()) return;
  log(LogLevel::kWarning, "rank ", options_.rank, " ends a connection with ", connection.peer_address(), ": ",
      status.message());
  connection.close(std::move(status));
}

absl::Status MeshCore::hear_sender(const std::shared_ptr<MeshLink>& link, const Frame& frame,
                                   transport::Message message) {
  if (frame.kind == FrameKind::kHello)
    return on_hello(link, frame, absl::string_view(message.header).substr(kFrameBytes));
  Todos todos;
  {
    MutexLock lock(mutex_);
    const int rank = link->rank;
    if (rank < 0) return absl::InvalidArgumentError("it has not said who it is");
    if (closed_ || peer(rank).lost) return absl::OkStatus();
    absl::Status status;
    Matcher::Actions actions;
    switch (frame.kind) {
      case FrameKind::kEager:
        status = matcher_.eager(rank, frame.channel, frame.tag, Payload(std::move(message)), actions);
        break;
      case FrameKind::kAnnounce:
        status = matcher_.announce(rank, frame.channel, frame.tag, frame.size, frame.id, actions);
        break;
      case FrameKind::kData:
        status = matcher_.data(rank, frame.id, Payload(std::move(message)), actions);
        break;
      case FrameKind::kWithdraw:
        matcher_.withdraw(rank, frame.id, static_cast<absl::StatusCode>(frame.code), actions);
        break;
      default:
        status = absl::InvalidArgumentError(
            "a frame of kind " + std::to_string(static_cast<int>(frame.kind)) + " is not the sender's");
    }
    GRADWIRE_RETURN_IF_ERROR(status);
    todos = take_locked(std::move(actions));
  }
  perform(std::move(todos));
  return absl::OkStatus();
}

absl::Status MeshCore::hear_receiver(const std::shared_ptr<MeshLink>& link, const Frame& frame) {
  const int rank = link->rank;
  {
    MutexLock lock(mutex_);
    Peer& to = peer(rank);
    if (frame.kind == FrameKind::kWelcome) {
      if (link->connection == nullptr || link->welcomed)
        return absl::InvalidArgumentError("a welcome out of place");
      link->welcomed = true;
      timers_->cancel(std::exchange(link->timer, 0));
    } else if (!link->welcomed) {
      return absl::InvalidArgumentError("it has not said welcome");
    } else if (frame.kind == FrameKind::kCredit) {
      if (frame.size > to.eager_bytes) return absl::InvalidArgumentError("it returns more than it was sent");
      to.eager_bytes -= frame.size;
    }
  }
  switch (frame.kind) {
    case FrameKind::kWelcome:
      flush_queue(link);
      return absl::OkStatus();
    case FrameKind::kAsk:
      on_ask(rank, frame.id);
      return absl::OkStatus();
    case FrameKind::kRefuse:
      on_refuse(rank, frame.id, static_cast<absl::StatusCode>(frame.code), frame.size);
      return absl::OkStatus();
    case FrameKind::kCredit:
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("a frame of kind " + std::to_string(static_cast<int>(frame.kind)) +
                                        " is not the receiver's");
  }
}

}  // namespace gradwire::collectives::cpu
