#include "gradwire/collectives/cpu/p2p/send_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

void Outboxes::push(int dst, Entry entry, bool first) {
  Box& to = box(dst);
  if (to.closed) return;
  to.answers += entry.send == nullptr;
  to.entries.insert(first ? to.entries.begin() : to.entries.end(), std::move(entry));
  ++size_;
}

Outboxes::Entry Outboxes::pop(int dst) {
  Entry first = std::move(box(dst).entries.front());
  box(dst).entries.pop_front();
  box(dst).answers -= first.send == nullptr;
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

bool SendTable::take_window(int dst, std::size_t size) {
  if (size > eager_bytes_ || size > eager_window_) return false;
  const uint64_t cost = size + kMessageCost;
  if (peer(dst).eager_bytes + cost > eager_window_) return false;
  peer(dst).eager_bytes += cost;
  return true;
}

void SendTable::untake_window(int dst, std::size_t size) {
  // A peer may have returned more than it has got.
  uint64_t& taken = peer(dst).eager_bytes;
  taken -= std::min<uint64_t>(taken, size + kMessageCost);
}

absl::Status SendTable::return_window(int dst, uint64_t bytes) {
  if (bytes > peer(dst).eager_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("credit of ", bytes, " bytes, expected at most ",
                                                   peer(dst).eager_bytes, " that were sent"));
  }
  peer(dst).eager_bytes -= bytes;
  return absl::OkStatus();
}

absl::Status SendTable::add(const SendPtr& send, uint64_t id, const std::string& dst_name) {
  Peer& to = peer(send->peer);
  send->eager = take_window(send->peer, send->data.size);
  if (!send->eager) {
    if (to.announced >= max_pending_rts_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(dst_name, " has left ", max_pending_rts_, " messages of this rank waiting"));
    }
    ++to.announced;
    send->counted = true;
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

void SendTable::rts_sent(const SendPtr& send, const absl::Status& status, Effects& effects) {
  if (!contains(*send)) return;
  if (!status.ok()) {
    finish(send, status, effects);
  } else if (!send->ended.ok()) {
    if (!send->nacked) say_cancel(*send, send->ended.code(), effects);
    finish(send, send->ended, effects);
  } else {
    send->stage = Send::Stage::kRtsSent;
    if (send->cleared) on_clear(send->peer, send->id, effects);
  }
}

void SendTable::sent(const SendPtr& send, Effects& effects) {
  if (contains(*send)) finish(send, absl::OkStatus(), effects);
}

void SendTable::released(const SendPtr& send, Effects& effects) {
  if (contains(*send)) finish(send, send->ended, effects);
}

void SendTable::unsent(const SendPtr& send, bool known, const absl::Status& status, Effects& effects) {
  if (!contains(*send)) return;
  absl::Status result = send->ended.ok() ? status : send->ended;
  if (known) {
    say_cancel(*send, result.code(), effects);
  } else if (send->eager) {
    untake_window(send->peer, send->data.size);
  }
  finish(send, std::move(result), effects);
}

SendPtr SendTable::find(uint64_t id) const {
  const auto found = sends_.find(id);
  return found == sends_.end() ? nullptr : found->second;
}

SendPtr SendTable::find_pending_rts(int from, uint64_t id) const {
  SendPtr send = find(id);
  if (send == nullptr) return nullptr;
  const bool waits = send->stage == Send::Stage::kRtsSent || send->stage == Send::Stage::kSendingRts;
  return waits && send->peer == from && !send->cleared && !send->nacked ? send : nullptr;
}

void SendTable::on_clear(int from, uint64_t id, Effects& effects) {
  const SendPtr send = find(id);
  if (send == nullptr || send->peer != from) return;
  if (send->stage == Send::Stage::kSendingRts) {
    send->cleared = send->ended.ok();
    return;
  }
  if (send->stage != Send::Stage::kRtsSent) return;
  settle(*send);
  send->stage = Send::Stage::kCleared;
  outboxes_.push(from, {{.kind = FrameKind::kData, .size = send->data.size, .id = send->id}, send});
  effects.push_back({.kind = Effect::Kind::kWake, .rank = from});
}

void SendTable::on_nack(int from, uint64_t id, absl::Status why, Effects& effects) {
  const SendPtr send = find_pending_rts(from, id);
  if (send == nullptr) return;
  if (send->stage == Send::Stage::kSendingRts) {
    send->nacked = true;
    if (send->ended.ok()) send->ended = std::move(why);
    return;
  }
  finish(send, std::move(why), effects);
}

void SendTable::end(const SendPtr& send, absl::Status status, Effects& effects) {
  if (!contains(*send)) return;
  switch (send->stage) {
    case Send::Stage::kQueued:
      outboxes_.erase(send);
      if (send->eager) untake_window(send->peer, send->data.size);
      break;
    case Send::Stage::kCleared:
      outboxes_.erase(send);
      say_cancel(*send, status.code(), effects);
      break;
    case Send::Stage::kRtsSent:
      say_cancel(*send, status.code(), effects);
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
  if (std::exchange(send.counted, false)) --peer(send.peer).announced;
}

void SendTable::say_cancel(const Send& send, absl::StatusCode code, Effects& effects) {
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
  const auto place = [](const Send& send) { return std::pair(send.stage != Send::Stage::kQueued, send.id); };
  std::sort(found.begin(), found.end(),
            [&](const SendPtr& a, const SendPtr& b) { return place(*a) < place(*b); });
  return found;
}

}  // namespace gradwire::collectives::cpu
