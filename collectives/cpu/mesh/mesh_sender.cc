#include "gradwire/collectives/cpu/mesh/mesh_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_wire.h"

namespace gradwire::collectives::cpu {
namespace {

// An eager message of at most this size is copied as far as it has not been sent, so that the sender need not
// wait.
constexpr std::size_t kCapturedBytes = std::size_t{64} << 10;

}  // namespace

// The owner of the buffer that the transport reads. The transport destroys it when it needs the data no more.
// That may be after the mesh has ended, so the pointer is weak.
class MeshSender::Release {
 public:
  Release(std::weak_ptr<MeshSender> sender, uint64_t id) : sender_(std::move(sender)), id_(id) {}
  ~Release() {
    if (const std::shared_ptr<MeshSender> sender = sender_.lock()) sender->on_released(id_);
  }

 private:
  const std::weak_ptr<MeshSender> sender_;
  const uint64_t id_;
};

void MeshSender::set_connection(int rank, const ConnectionPtr& connection) {
  {
    MutexLock lock(endpoint_.mutex);
    peer(rank).connection = connection;
  }
  empty_outbox(rank);
}

// The fast path for short messages. It must not overtake an earlier message of this thread: those are in the
// outbox, or another thread is sending them (`sending`). The bytes are charged to the window under the lock,
// and given back if the transport refuses the message.
std::optional<absl::Status> MeshSender::send_at_once(int dst, uint64_t channel, int64_t tag, Span data) {
  ConnectionPtr out;
  {
    MutexLock lock(endpoint_.mutex);
    SendTable& sends = endpoint_.state.sends();
    if (data.size > kCapturedBytes || dst == rank_ || !endpoint_.state.check(dst).ok() ||
        peer(dst).connection == nullptr || peer(dst).sending || sends.outboxes().has(dst) ||
        !endpoint_.state.check_open(dst, channel).ok() || !sends.take_window(dst, data.size)) {
      return std::nullopt;
    }
    out = peer(dst).connection;
  }
  const Frame frame{.kind = FrameKind::kEager, .channel = channel, .tag = tag, .size = data.size};
  absl::Status status = send_captured(*out, dst, frame, data);
  if (!status.ok()) {
    MutexLock lock(endpoint_.mutex);
    endpoint_.state.sends().release_window(dst, data.size);
  }
  return status;
}

absl::Status MeshSender::context(const absl::Status& status, uint64_t channel, int dst) {
  MutexLock lock(endpoint_.mutex);
  return with_context(status, absl::StrCat("sending to ", endpoint_.state.channels().name_of(channel, dst)));
}

absl::Status MeshSender::send_captured(transport::Connection& out, int dst, const Frame& frame, Span data) {
  const bool is_inline = data.size <= kInlineBytes;
  transport::Message message{encode_frame(frame, is_inline ? data.size : 0), {}};
  if (is_inline) {
    if (data.size > 0) message.header.append(static_cast<const char*>(data.data), data.size);
  } else {
    message.buffers.emplace_back(data.data, data.size, nullptr, transport::Buffer::Sharing::kBorrowed);
  }
  const absl::StatusOr<uint64_t> ticket = out.send(std::move(message));
  if (!ticket.ok()) return context(ticket.status(), frame.channel, dst);
  // capture() makes the transport copy the part that it has not sent yet. Afterwards it does not read the
  // caller's memory.
  if (!is_inline) out.capture(*ticket);
  return absl::OkStatus();
}

// One thread sends at a time, so the frames keep their order, although the lock is not held while a frame is
// sent. No entry is left behind: a thread that adds an entry calls this function afterwards. If it finds
// `sending`, the sending thread checks the outbox again, under the lock, after it has cleared `sending`.
void MeshSender::empty_outbox(int dst) {
  while (true) {
    ConnectionPtr out;
    SendTable::Outgoing next;
    {
      MutexLock lock(endpoint_.mutex);
      Peer& to = peer(dst);
      out = to.connection;
      if (out != nullptr) {
        if (to.sending) return;
        if (!endpoint_.state.sends().outboxes().has(dst)) return;
        to.sending = true;
        next = endpoint_.state.sends().take(dst);
      }
    }
    // The entries wait in the outbox. set_connection() calls this function again.
    if (out == nullptr) {
      owner_.connect(dst);
      return;
    }
    transmit(out, next);
    MutexLock lock(endpoint_.mutex);
    peer(dst).sending = false;
  }
}

void MeshSender::transmit(const ConnectionPtr& out, const SendTable::Outgoing& next) {
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
    MutexLock lock(endpoint_.mutex);
    if (next.frame.kind == FrameKind::kRts) {
      endpoint_.state.sends().rts_sent(send, status, effects);
    } else if (status.ok()) {
      endpoint_.state.sends().sent(send, effects);
    } else {
      endpoint_.state.sends().unsent(send, /*known=*/false, status, effects);
    }
  }
  owner_.perform(std::move(effects));
}

// The transport may release the data, and the message may end, before send() has returned the ticket. So:
// 1. Enter the message in reading_, without a ticket.
// 2. Hand the data to the transport.
// 3. With the lock held, handle what has happened meanwhile: the transport failed, it has released the data,
//    or the message has ended. Otherwise store the ticket, for retract() and on_released().
void MeshSender::transmit_data(const ConnectionPtr& out, const SendTable::Outgoing& next) {
  const SendPtr& send = next.send;
  transport::Message message{encode_frame(next.frame), {}};
  if (send->data.size > 0) {
    message.buffers.emplace_back(send->data.data, send->data.size,
                                 std::make_shared<Release>(owner_.sender(), send->id),
                                 transport::Buffer::Sharing::kBorrowed);
  }
  {
    MutexLock lock(endpoint_.mutex);
    reading_[send->id] = {.connection = out};
  }
  const absl::StatusOr<uint64_t> ticket = out->send(std::move(message));
  const absl::Status status =
      ticket.ok() ? absl::OkStatus() : context(ticket.status(), send->channel, send->peer);
  bool retracted = false;
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    const auto entry = reading_.find(send->id);
    if (!status.ok()) {
      // If the connection stays open, the receiver must not wait for the data.
      endpoint_.state.sends().unsent(send, /*known=*/next.frame.kind == FrameKind::kData, status, effects);
    } else if (send->data.size == 0 || entry->second.released) {
      endpoint_.state.sends().sent(send, effects);
    } else {
      entry->second.ticket = *ticket;
      // The message may have ended while the transport took it.
      retracted = !send->ended.ok();
    }
    if (!endpoint_.state.sends().contains(*send)) reading_.erase(entry);
  }
  if (retracted) retract(send, effects);
  owner_.perform(std::move(effects));
}

// Runs on the thread that destroys the buffer, which may be in the transport or inside out->send(). The
// message may have ended before; then the entry is missing.
void MeshSender::on_released(uint64_t id) {
  Effects effects;
  {
    MutexLock lock(endpoint_.mutex);
    const auto entry = reading_.find(id);
    if (entry == reading_.end()) return;
    entry->second.released = true;
    // The thread in transmit_data() has not stored the ticket yet. It will see `released`.
    if (!entry->second.ticket.has_value()) return;
    reading_.erase(entry);
    if (const SendPtr send = endpoint_.state.sends().find(id)) endpoint_.state.sends().sent(send, effects);
  }
  owner_.perform(std::move(effects));
}

void MeshSender::retract(const SendPtr& send, Effects& effects) {
  ConnectionPtr connection;
  uint64_t ticket = 0;
  {
    MutexLock lock(endpoint_.mutex);
    const auto entry = reading_.find(send->id);
    // Without a ticket, the thread in transmit_data() sees that the message has ended.
    if (entry == reading_.end() || !entry->second.ticket.has_value()) return;
    connection = entry->second.connection;
    ticket = *entry->second.ticket;
    reading_.erase(entry);
  }
  // Without the lock: capture() may release the data, which calls on_released(). The entry is gone already,
  // so that call does nothing, and the message ends here.
  connection->capture(ticket);
  MutexLock lock(endpoint_.mutex);
  endpoint_.state.sends().released(send, effects);
}

}  // namespace gradwire::collectives::cpu
