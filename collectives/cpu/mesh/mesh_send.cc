// The part of MeshCore that sends.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_core.h"

namespace gradwire::collectives::cpu {
namespace {

// What has not left of an eager message is copied, so that the sender need not wait; not of longer ones.
constexpr std::size_t kCapturedBytes = std::size_t{64} << 10;

std::string frame_with(const Frame& frame, Span data) {
  std::string header = encode_frame(frame, data.size);
  if (data.size > 0) header.append(static_cast<const char*>(data.data), data.size);
  return header;
}

absl::Status too_many(const std::string& rank) {
  return absl::ResourceExhaustedError(
      absl::StrCat(rank, " has left ", kMaxAnnounced, " messages of this rank waiting"));
}

}  // namespace

absl::Status MeshCore::check_open_locked(int dst, uint64_t channel) {
  if (closed_) return absl::CancelledError("the mesh was shut down");
  GRADWIRE_RETURN_IF_ERROR(matcher_.state(channel));
  return matcher_.gone(channel, dst);
}

bool MeshCore::take_window_locked(Peer& peer, std::size_t size) {
  if (size > options_.eager_bytes || size > kEagerWindow) return false;
  const uint64_t cost = size + kMessageCost;
  if (peer.eager_bytes + cost > kEagerWindow) return false;
  peer.eager_bytes += cost;
  return true;
}

bool MeshCore::take_announcement_locked(Send& send) {
  Peer& to = peer(send.dst);
  if (to.announced >= kMaxAnnounced) return false;
  ++to.announced;
  send.counted = true;
  return true;
}

void MeshCore::settle_locked(Send& send) {
  if (std::exchange(send.counted, false)) --peer(send.dst).announced;
}

uint64_t MeshCore::add_send_locked(const std::shared_ptr<Send>& send) {
  const uint64_t id = next_id_++;
  sends_.emplace(id, send);
  send->promise.on_cancel([core = weak_from_this(), id] {
    if (const std::shared_ptr<MeshCore> self = core.lock()) self->cancel_send(id);
  });
  watch_locked(send->deadline);
  return id;
}

Future<void> MeshCore::send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  Promise<void> promise(executor_);
  Future<void> future = promise.future();
  if (absl::Status wrong = check(dst, data); !wrong.ok()) {
    promise.set_error(std::move(wrong));
    return future;
  }
  if (dst == options_.rank) return send_to_self(channel, tag, data, deadline);
  std::shared_ptr<MeshLink> link;
  std::shared_ptr<Send> send;
  uint64_t id = 0;
  absl::Status refused;
  {
    MutexLock lock(mutex_);
    Peer& to = peer(dst);
    refused = check_open_locked(dst, channel);
    const bool open = to.state == Peer::State::kOpen;
    if (refused.ok() && open) link = to.out;
    const bool eager = refused.ok() && open && take_window_locked(to, data.size);
    if (refused.ok() && !(eager && data.size <= kCapturedBytes)) {
      send = std::make_shared<Send>(
          Send{open ? Send::Stage::kBusy : Send::Stage::kQueued, dst, channel, tag, data, deadline, promise});
      send->link = link;
      send->eager = eager;
      if (open && !eager && !take_announcement_locked(*send)) {
        refused = too_many(matcher_.name_of(channel, dst));
      } else {
        id = add_send_locked(send);
      }
      if (!open) {
        to.queue.push_back(id);
        want_locked(dst);
      }
    }
  }
  if (!refused.ok()) {
    promise.set_error(std::move(refused));
  } else if (send == nullptr) {
    promise.set_result(send_eager(*link, channel, tag, data));
  } else if (link != nullptr && send->eager) {
    send_data(id, send);
  } else if (link != nullptr) {
    announce(id, send);
  }
  return future;
}

Future<void> MeshCore::send_to_self(uint64_t channel, int64_t tag, Span data, absl::Time deadline) {
  Promise<void> promise(executor_);
  const int rank = options_.rank;
  absl::Status status;
  Todos todos;
  bool eager = false;
  {
    MutexLock lock(mutex_);
    status = check_open_locked(rank, channel);
    Peer& self = peer(rank);
    Matcher::Actions actions;
    if (status.ok() && take_window_locked(self, data.size)) {
      eager = true;
      const Frame frame{.kind = FrameKind::kEager, .channel = channel, .tag = tag, .size = data.size};
      status = matcher_.eager(rank, channel, tag, Payload(transport::Message{frame_with(frame, data), {}}),
                              actions);
    } else if (status.ok()) {
      auto send =
          std::make_shared<Send>(Send{Send::Stage::kAnnounced, rank, channel, tag, data, deadline, promise});
      if (take_announcement_locked(*send)) {
        status = matcher_.announce(rank, channel, tag, data.size, add_send_locked(send), actions);
      } else {
        status = too_many(matcher_.name_of(channel, rank));
      }
    }
    todos = take_locked(std::move(actions));
  }
  if (eager || !status.ok()) promise.set_result(std::move(status));
  perform(std::move(todos));
  return promise.future();
}

absl::Status MeshCore::send_eager(MeshLink& link, uint64_t channel, int64_t tag, Span data) {
  const Frame frame{.kind = FrameKind::kEager, .channel = channel, .tag = tag, .size = data.size};
  absl::StatusOr<uint64_t> ticket;
  if (data.size <= kInlineBytes) {
    ticket = link.connection->send({frame_with(frame, data), {}});
  } else {
    transport::Message message{encode_frame(frame), {}};
    message.buffers.emplace_back(data.data, data.size, nullptr, transport::Buffer::Sharing::kBorrowed);
    ticket = link.connection->send(std::move(message));
    if (ticket.ok()) link.connection->capture(*ticket);
  }
  if (ticket.ok()) return absl::OkStatus();
  return with_context(ticket.status(), absl::StrCat("sending to ", name_of(channel, link.rank)));
}

void MeshCore::flush_queue(const std::shared_ptr<MeshLink>& link) {
  while (true) {
    std::shared_ptr<Send> send;
    uint64_t id;
    bool admitted = true;
    {
      MutexLock lock(mutex_);
      Peer& to = peer(link->rank);
      if (to.queue.empty()) {
        if (to.state == Peer::State::kConnecting) to.state = Peer::State::kOpen;
        return;
      }
      id = to.queue.front();
      to.queue.pop_front();
      auto found = sends_.find(id);
      if (found == sends_.end()) continue;
      send = found->second;
      send->stage = Send::Stage::kBusy;
      send->link = link;
      send->eager = take_window_locked(to, send->data.size);
      admitted = send->eager || take_announcement_locked(*send);
    }
    if (send->eager && send->data.size <= kCapturedBytes) {
      complete(id, send, send_eager(*link, send->channel, send->tag, send->data));
    } else if (send->eager) {
      send_data(id, send);
    } else if (!admitted) {
      complete(id, send, too_many(name_of(send->channel, send->dst)));
    } else {
      announce(id, send);
    }
  }
}

}  // namespace gradwire::collectives::cpu
