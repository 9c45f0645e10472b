// The part of MeshCore that sees a message through that was announced, and ends messages.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_core.h"

namespace gradwire::collectives::cpu {

class MeshCore::Leaving {
 public:
  Leaving(std::weak_ptr<MeshCore> core, uint64_t id) : core_(std::move(core)), id_(id) {}
  ~Leaving() {
    if (const std::shared_ptr<MeshCore> core = core_.lock()) core->on_left(id_);
  }

 private:
  const std::weak_ptr<MeshCore> core_;
  const uint64_t id_;
};

// Numbered as it happens: 1. the matcher has found the receive; 2. the data goes into it; 3. the send is done.
void MeshCore::send_to_own_receive(uint64_t id) {
  std::shared_ptr<Send> send;
  Todos todos;
  {
    MutexLock lock(mutex_);
    auto found = sends_.find(id);
    if (found == sends_.end() || found->second->stage != Send::Stage::kAnnounced) return;
    send = found->second;
    send->stage = Send::Stage::kBusy;
    settle_locked(*send);
    Matcher::Actions actions;
    (void)matcher_.data(send->dst, id, Payload(send->data.data, send->data.size), actions);
    todos = take_locked(std::move(actions));
  }
  perform(std::move(todos));
  complete(id, send, absl::OkStatus());
}

void MeshCore::announce(uint64_t id, const std::shared_ptr<Send>& send) {
  const Frame frame{.kind = FrameKind::kAnnounce,
                    .channel = send->channel,
                    .tag = send->tag,
                    .size = send->data.size,
                    .id = id};
  const absl::StatusOr<uint64_t> sent = send->link->connection->send({encode_frame(frame), {}});
  absl::Status ended;
  bool withdraw = false;
  {
    MutexLock lock(mutex_);
    if (!sent.ok()) {
      ended = with_context(sent.status(),
                           absl::StrCat("sending to ", matcher_.name_of(send->channel, send->dst)));
    } else if (!send->ended.ok()) {
      ended = send->ended;
      withdraw = !send->refused;
    } else if (!send->asked) {
      send->stage = Send::Stage::kAnnounced;
      return;
    }
    settle_locked(*send);
  }
  if (ended.ok()) {
    send_data(id, send);
    return;
  }
  if (withdraw) {
    const Frame gone{.kind = FrameKind::kWithdraw, .code = static_cast<uint32_t>(ended.code()), .id = id};
    (void)send->link->connection->send({encode_frame(gone), {}});
  }
  complete(id, send, std::move(ended));
}

void MeshCore::on_ask(int from, uint64_t id) {
  std::shared_ptr<Send> send;
  {
    MutexLock lock(mutex_);
    auto found = sends_.find(id);
    // It may have ended meanwhile.
    if (found == sends_.end() || found->second->dst != from || !found->second->counted) return;
    send = found->second;
    settle_locked(*send);
    send->asked = true;
    if (send->stage == Send::Stage::kBusy) return;
    send->stage = Send::Stage::kBusy;
  }
  send_data(id, send);
}

void MeshCore::send_data(uint64_t id, const std::shared_ptr<Send>& send) {
  Frame frame{.kind = FrameKind::kData, .size = send->data.size, .id = id};
  if (send->eager)
    frame = {.kind = FrameKind::kEager, .channel = send->channel, .tag = send->tag, .size = send->data.size};
  transport::Message message{encode_frame(frame), {}};
  if (send->data.size > 0) {
    message.buffers.emplace_back(send->data.data, send->data.size,
                                 std::make_shared<Leaving>(weak_from_this(), id),
                                 transport::Buffer::Sharing::kBorrowed);
  }
  const bool empty = send->data.size == 0;
  transport::Connection& connection = *send->link->connection;
  const absl::StatusOr<uint64_t> ticket = connection.send(std::move(message));
  if (!ticket.ok()) {
    // Where the connection lives on, the receive must not wait for it.
    const Frame gone{
        .kind = FrameKind::kWithdraw, .code = static_cast<uint32_t>(ticket.status().code()), .id = id};
    if (!send->eager) (void)connection.send({encode_frame(gone), {}});
    complete(id, send,
             with_context(ticket.status(), absl::StrCat("sending to ", name_of(send->channel, send->dst))));
    return;
  }
  absl::Status ended;
  {
    MutexLock lock(mutex_);
    if (!send->left && !empty && send->ended.ok()) {
      send->ticket = *ticket;
      send->stage = Send::Stage::kLeaving;
      return;
    }
    if (!send->left) ended = send->ended;
  }
  if (!ended.ok()) connection.capture(*ticket);
  complete(id, send, std::move(ended));
}

void MeshCore::on_left(uint64_t id) {
  std::shared_ptr<Send> send;
  {
    MutexLock lock(mutex_);
    auto found = sends_.find(id);
    if (found == sends_.end()) return;
    if (found->second->stage != Send::Stage::kLeaving) {
      found->second->left = true;
      return;
    }
    send = found->second;
    send->stage = Send::Stage::kBusy;
  }
  complete(id, send, absl::OkStatus());
}

void MeshCore::on_refuse(int from, uint64_t id, absl::StatusCode code, uint64_t size) {
  std::shared_ptr<Send> send;
  absl::Status status;
  {
    MutexLock lock(mutex_);
    auto found = sends_.find(id);
    if (found == sends_.end() || found->second->dst != from || !found->second->counted) return;
    send = found->second;
    settle_locked(*send);
    const std::string name = matcher_.name_of(send->channel, from);
    status = code == absl::StatusCode::kInvalidArgument
                 ? absl::InvalidArgumentError(absl::StrCat("a message of ", send->data.size, " bytes (tag ",
                                                           send->tag, ") came to ", name,
                                                           " for a receive of ", size, " bytes"))
                 : absl::Status(code, absl::StrCat(name, " does not take a message (tag ", send->tag,
                                                   "): ", absl::StatusCodeToString(code)));
    if (send->stage == Send::Stage::kBusy) {
      send->refused = true;
      send->ended = std::move(status);
      return;
    }
    send->stage = Send::Stage::kBusy;
  }
  complete(id, send, std::move(status));
}

void MeshCore::complete(uint64_t id, const std::shared_ptr<Send>& send, absl::Status status) {
  {
    MutexLock lock(mutex_);
    sends_.erase(id);
    changed_.notify_all();
  }
  send->promise.set_result(std::move(status));
}

void MeshCore::end_send(uint64_t id, absl::Status status) {
  std::shared_ptr<Send> send;
  Send::Stage stage;
  Todos todos;
  {
    MutexLock lock(mutex_);
    auto found = sends_.find(id);
    if (found == sends_.end()) return;
    send = found->second;
    stage = send->stage;
    if (stage == Send::Stage::kBusy) {
      if (send->ended.ok()) send->ended = std::move(status);
      return;
    }
    send->stage = Send::Stage::kBusy;
    settle_locked(*send);
    if (stage == Send::Stage::kAnnounced && send->dst == options_.rank) {
      Matcher::Actions actions;
      matcher_.withdraw(send->dst, id, status.code(), actions);
      todos = take_locked(std::move(actions));
    }
  }
  if (stage == Send::Stage::kLeaving) {
    send->link->connection->capture(send->ticket);
  } else if (stage == Send::Stage::kAnnounced && send->link != nullptr) {
    const Frame gone{.kind = FrameKind::kWithdraw, .code = static_cast<uint32_t>(status.code()), .id = id};
    (void)send->link->connection->send({encode_frame(gone), {}});
  }
  perform(std::move(todos));
  complete(id, send, std::move(status));
}

void MeshCore::cancel_send(uint64_t id) {
  end_send(id, absl::CancelledError("cancelled by the caller"));
  // Somebody may be reading the data.
  MutexLock lock(mutex_);
  while (sends_.contains(id)) changed_.wait(mutex_);
}

void MeshCore::fail_sends(int rank, const absl::Status& reason) {
  std::vector<std::pair<uint64_t, absl::Status>> sends;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, send] : sends_) {
      if (send->dst != rank) continue;
      sends.emplace_back(id, absl::Status(reason.code(), absl::StrCat(matcher_.name_of(send->channel, rank),
                                                                      " ", reason.message())));
    }
  }
  for (auto& [id, status] : sends) end_send(id, std::move(status));
}

}  // namespace gradwire::collectives::cpu
