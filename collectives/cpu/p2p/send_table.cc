// The sender's half of the eager and the rendezvous protocol.
//
// The difficulty is that the carrier works without the lock. Between take() and rts_sent(), sent(), unsent()
// or released() it uses the message and its memory. Answers of the receiver, cancellation and deadlines may
// come in between. They are recorded in the Send, and take effect when the carrier reports that it has
// finished.

#include "gradwire/collectives/cpu/p2p/send_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

void Outboxes::push(int dst, Entry entry, bool first) {
  Box& to = box(dst);
  if (to.closed) return;
  to.control_frames += entry.send == nullptr;
  to.entries.insert(first ? to.entries.begin() : to.entries.end(), std::move(entry));
  ++size_;
}

// REQUIRES: has(dst)
Outboxes::Entry Outboxes::pop(int dst) {
  Entry first = std::move(box(dst).entries.front());
  box(dst).entries.pop_front();
  box(dst).control_frames -= first.send == nullptr;
  --size_;
  return first;
}

void Outboxes::erase(const SendPtr& send) {
  std::deque<Entry>& entries = box(send->peer).entries;
  const auto found =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& each) { return each.send == send; });
  if (found == entries.end()) return;
  entries.erase(found);
  --size_;
}

void Outboxes::close(int dst) {
  size_ -= box(dst).entries.size();
  box(dst) = {.closed = true};
}

// Returns false if the message must use the rendezvous protocol: it is too long, or the receiver has not
// returned enough of the window. The receiver checks the same sum (Matcher::charge_window).
bool SendTable::take_window(int dst, std::size_t size) {
  if (size > eager_bytes_ || size > eager_window_) return false;
  const uint64_t cost = size + kMessageCost;
  if (peer(dst).eager_bytes + cost > eager_window_) return false;
  peer(dst).eager_bytes += cost;
  return true;
}

void SendTable::release_window(int dst, std::size_t size) {
  // A hostile peer may have returned credit for a message that it has not received.
  uint64_t& taken = peer(dst).eager_bytes;
  taken -= std::min<uint64_t>(taken, size + kMessageCost);
}

absl::Status SendTable::on_credit(int dst, uint64_t bytes) {
  if (bytes > peer(dst).eager_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("credit of ", bytes, " bytes, expected at most ",
                                                   peer(dst).eager_bytes, " that were sent"));
  }
  peer(dst).eager_bytes -= bytes;
  return absl::OkStatus();
}

// The limit for pending RTS is a limit of the receiver, which closes its exchange with a sender that exceeds
// it (Matcher::on_rts). So this side refuses the message before it is announced.
absl::Status SendTable::add(const SendPtr& send, uint64_t id, const std::string& dst_name) {
  Peer& to = peer(send->peer);
  send->eager = take_window(send->peer, send->data.size);
  if (!send->eager) {
    if (to.pending_rts >= max_pending_rts_) {
      return absl::ResourceExhaustedError(absl::StrCat("too many pending messages: ", dst_name,
                                                       " has not received ", max_pending_rts_,
                                                       " messages of this rank"));
    }
    ++to.pending_rts;
    send->counts_as_pending = true;
  }
  send->id = id;
  sends_.emplace(id, send);
  return absl::OkStatus();
}

void SendTable::enqueue(const SendPtr& send, Effects& effects) {
  Frame frame{.kind = FrameKind::kEager, .channel = send->channel, .tag = send->tag, .size = send->data.size};
  if (!send->eager) {
    frame.kind = FrameKind::kRts;
    frame.id = send->id;
  }
  outboxes_.push(send->peer, {frame, send});
  effects.push_back({.kind = Effect::Kind::kWake, .rank = send->peer});
}

SendTable::Outgoing SendTable::take(int dst) {
  Outgoing next = outboxes_.pop(dst);
  if (next.send != nullptr) {
    next.send->stage = next.frame.kind == FrameKind::kRts ? Send::Stage::kSendingRts : Send::Stage::kSending;
  }
  return next;
}

// The carrier has finished with the RTS. In this order:
// 1. The RTS could not be sent: the receiver does not know of the message, so it needs no kCancel.
// 2. The operation has ended meanwhile. The receiver has the RTS and must be sent a kCancel, unless it has
//    refused the message itself.
// 3. Otherwise the message waits for its answer, which may have arrived already: the receiver can be faster
//    than the return from the carrier's send.
void SendTable::rts_sent(const SendPtr& send, const absl::Status& status, Effects& effects) {
  if (!contains(*send)) return;
  if (!status.ok()) {
    finish(send, status, effects);
  } else if (!send->ended.ok()) {
    if (!send->nack_received) push_cancel(*send, send->ended.code(), effects);
    finish(send, send->ended, effects);
  } else {
    send->stage = Send::Stage::kRtsSent;
    if (send->cts_received) on_cts(send->peer, send->id, effects);
  }
}

void SendTable::sent(const SendPtr& send, Effects& effects) {
  if (contains(*send)) finish(send, absl::OkStatus(), effects);
}

// The receiver needs no kCancel here: the carrier has copied the rest of the data and sends it, or nothing
// can be sent to the receiver any more.
void SendTable::released(const SendPtr& send, Effects& effects) {
  if (contains(*send)) finish(send, send->ended, effects);
}

// The window of the receiver must agree with the window here. If the receiver knows of the eager message, it
// charges the bytes and returns them as credit when it handles the kCancel. If it does not, no credit will
// come, and the bytes are released here.
void SendTable::unsent(const SendPtr& send, bool known, const absl::Status& status, Effects& effects) {
  if (!contains(*send)) return;
  absl::Status result = send->ended.ok() ? status : send->ended;
  if (known) {
    push_cancel(*send, result.code(), effects);
  } else if (send->eager) {
    release_window(send->peer, send->data.size);
  }
  finish(send, std::move(result), effects);
}

SendPtr SendTable::find(uint64_t id) const {
  const auto found = sends_.find(id);
  return found == sends_.end() ? nullptr : found->second;
}

// Returns null also for a message that was answered before: a second answer, which only a peer that violates
// the protocol sends, must not end or send the message again.
SendPtr SendTable::find_pending_rts(int from, uint64_t id) const {
  SendPtr send = find(id);
  if (send == nullptr) return nullptr;
  const bool waits = send->stage == Send::Stage::kRtsSent || send->stage == Send::Stage::kSendingRts;
  return waits && send->peer == from && !send->cts_received && !send->nack_received ? send : nullptr;
}

// An answer for an unknown message is ignored: the message may have ended, and its kCancel crossed this CTS.
// The check of `from` keeps one rank from answering for another.
void SendTable::on_cts(int from, uint64_t id, Effects& effects) {
  const SendPtr send = find(id);
  if (send == nullptr || send->peer != from) return;
  if (send->stage == Send::Stage::kSendingRts) {
    // If the operation has ended, rts_sent() sends kCancel instead of the data.
    send->cts_received = send->ended.ok();
    return;
  }
  if (send->stage != Send::Stage::kRtsSent) return;
  settle(*send);
  send->stage = Send::Stage::kCtsReceived;
  outboxes_.push(from, {{.kind = FrameKind::kData, .size = send->data.size, .id = send->id}, send});
  effects.push_back({.kind = Effect::Kind::kWake, .rank = from});
}

void SendTable::on_nack(int from, uint64_t id, absl::Status why, Effects& effects) {
  const SendPtr send = find_pending_rts(from, id);
  if (send == nullptr) return;
  if (send->stage == Send::Stage::kSendingRts) {
    send->nack_received = true;
    // The carrier is still sending the RTS: rts_sent() ends the message.
    if (send->ended.ok()) send->ended = std::move(why);
    return;
  }
  finish(send, std::move(why), effects);
}

// Ends a message at any stage. The stage says what the receiver knows, and whether the memory is in use:
// - Queued: the receiver knows nothing. The entry leaves the outbox, and the window gets its bytes back.
// - RTS sent, or CTS received: the receiver knows the message and must be sent a kCancel.
// - Sending: the carrier uses the memory. The message ends when the carrier releases it, with the first
//   reason.
void SendTable::end(const SendPtr& send, absl::Status status, Effects& effects) {
  if (!contains(*send)) return;
  switch (send->stage) {
    case Send::Stage::kQueued:
      outboxes_.erase(send);
      if (send->eager) release_window(send->peer, send->data.size);
      break;
    case Send::Stage::kCtsReceived:
      outboxes_.erase(send);
      push_cancel(*send, status.code(), effects);
      break;
    case Send::Stage::kRtsSent:
      push_cancel(*send, status.code(), effects);
      break;
    case Send::Stage::kSendingRts:
    case Send::Stage::kSending:
      if (!send->ended.ok()) return;
      send->ended = std::move(status);
      effects.push_back({.kind = Effect::Kind::kRetract, .rank = send->peer, .send = send});
      return;
  }
  finish(send, std::move(status), effects);
}

void SendTable::finish(const SendPtr& send, absl::Status status, Effects& effects) {
  settle(*send);
  sends_.erase(send->id);
  effects.push_back({.kind = Effect::Kind::kEndSend, .send = send, .status = std::move(status)});
}

void SendTable::settle(Send& send) {
  if (std::exchange(send.counts_as_pending, false)) --peer(send.peer).pending_rts;
}

// kCancel goes in front of the outbox. A ring may have carried a part of an eager message, and then the next
// record must belong to the same message (kBegin in frame.h). kCancel overtakes no data of its own message:
// that has left the outbox.
void SendTable::push_cancel(const Send& send, absl::StatusCode code, Effects& effects) {
  outboxes_.push(send.peer,
                 {{.kind = FrameKind::kCancel, .code = static_cast<uint32_t>(code), .id = send.id}, nullptr},
                 /*first=*/true);
  effects.push_back({.kind = Effect::Kind::kWake, .rank = send.peer});
}

std::vector<SendPtr> SendTable::select(absl::FunctionRef<bool(const Send&)> chosen) const {
  std::vector<SendPtr> found;
  for (const auto& [id, send] : sends_) {
    if (chosen(*send)) found.push_back(send);
  }
  // Outboxes::erase() searches from the front. In this order it finds each queued message near the front, so
  // ending all messages of a rank takes linear time.
  const auto order = [](const Send& send) { return std::pair(send.stage != Send::Stage::kQueued, send.id); };
  std::sort(found.begin(), found.end(),
            [&](const SendPtr& a, const SendPtr& b) { return order(*a) < order(*b); });
  return found;
}

}  // namespace gradwire::collectives::cpu
