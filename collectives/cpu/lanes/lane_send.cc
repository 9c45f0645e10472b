// The part of LaneCore that sends.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/lanes/lane_core.h"

namespace gradwire::collectives::cpu {
namespace {

// Longer messages come in pieces, so that the reader copies the first while the writer copies the next.
constexpr std::size_t kWholeBytes = kLanePieceBytes / 2;
// Of the messages that a rank may leave unanswered some are kept for those that come without being asked for.
constexpr std::size_t kMostAnnounced = kMaxAnnounced - kEagerWindow / kWholeBytes;

LaneRecord eager_record(int64_t tag, Span data) {
  return {.kind = LaneKind::kEager,
          .tag = tag,
          .size = data.size,
          .payload = static_cast<const char*>(data.data)};
}

LaneRecord withdrawal(const LaneSend& send, absl::StatusCode code) {
  return {.kind = LaneKind::kWithdraw, .code = static_cast<uint8_t>(code), .id = send.id};
}

}  // namespace

absl::Status LaneCore::check(int rank) const {
  if (rank >= 0 && rank < options_.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no rank ", rank, " in a group of ", options_.size));
}

absl::Status LaneCore::check_open_locked(int dst) {
  if (closed_) return absl::CancelledError("this rank has left the group");
  GRADWIRE_RETURN_IF_ERROR(matcher_.state(kLaneChannel));
  return matcher_.gone(kLaneChannel, dst);
}

bool LaneCore::take_window_locked(Peer& to, std::size_t size) {
  const uint64_t cost = size + kMessageCost;
  if (size > options_.eager_bytes || to.eager_bytes + cost > kEagerWindow) return false;
  to.eager_bytes += cost;
  return true;
}

bool LaneCore::try_write_locked(int dst, int64_t tag, Span data) {
  Peer& to = peer(dst);
  if (data.size > kWholeBytes || dst == options_.rank || !to.queue.empty() || !to.out->fits(data.size) ||
      !take_window_locked(to, data.size)) {
    return false;
  }
  note_core();
  to.out->write(eager_record(tag, data));
  return true;
}

std::optional<absl::Status> LaneCore::try_send(int dst, int64_t tag, Span data) {
  if (absl::Status wrong = check(dst); !wrong.ok()) return wrong;
  {
    MutexLock lock(mutex_);
    if (absl::Status refused = check_open_locked(dst); !refused.ok()) return refused;
    if (!try_write_locked(dst, tag, data)) return std::nullopt;
  }
  ring_if_armed(dst);
  return absl::OkStatus();
}

Future<void> LaneCore::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  // One for all that are done at once.
  static const auto* const sent = new Future<void>(absl::OkStatus());
  if (const std::optional<absl::Status> done = try_send(dst, tag, data))
    return done->ok() ? *sent : Future<void>(*done);
  const auto send = std::make_shared<LaneSend>(executor_);
  send->dst = dst;
  send->tag = tag;
  send->data = data;
  send->deadline = deadline;
  const Future<void> future = send->promise.future();
  Todos todos;
  {
    MutexLock lock(mutex_);
    absl::Status status = check_open_locked(dst);
    if (status.ok()) status = begin_send_locked(send, todos);
    if (!status.ok()) finish_locked(send, std::move(status), todos);
    arm_and_poll_locked(todos);
  }
  perform(todos);
  return future;
}

absl::Status LaneCore::begin_send_locked(const SendPtr& send, Todos& todos) {
  Peer& to = peer(send->dst);
  send->id = next_id_++;
  send->eager = take_window_locked(to, send->data.size);
  if (!send->eager) {
    if (to.announced >= kMostAnnounced) {
      return absl::ResourceExhaustedError(absl::StrCat(matcher_.name_of(kLaneChannel, send->dst),
                                                       " has left ", kMostAnnounced,
                                                       " messages of this rank waiting"));
    }
    ++to.announced;
    send->counted = true;
  }
  add_send_locked(send);
  if (send->dst == options_.rank) return send_to_self_locked(send, todos);
  to.queue.emplace_back(send);
  ++queued_;
  flush_locked(send->dst, todos);
  return absl::OkStatus();
}

void LaneCore::add_send_locked(const SendPtr& send) {
  sends_.emplace(send->id, send);
  send->promise.on_cancel([core = weak_from_this(), id = send->id] {
    if (const std::shared_ptr<LaneCore> self = core.lock()) self->cancel_send(id);
  });
  watch_locked(send->deadline);
}

void LaneCore::cancel_send(uint64_t id) {
  Todos todos;
  {
    MutexLock lock(mutex_);
    const auto found = sends_.find(id);
    if (found == sends_.end()) return;
    const SendPtr send = found->second;
    end_send_locked(send, absl::CancelledError("cancelled by the caller"), todos);
  }
  perform(todos);
}

absl::Status LaneCore::send_to_self_locked(const SendPtr& send, Todos& todos) {
  Actions actions;
  const int rank = options_.rank;
  if (send->eager) {
    GRADWIRE_RETURN_IF_ERROR(matcher_.eager(rank, kLaneChannel, send->tag,
                                            Payload::copy_of(send->data.data, send->data.size), actions));
    finish_locked(send, absl::OkStatus(), todos);
  } else {
    send->stage = LaneSend::Stage::kAnnounced;
    GRADWIRE_RETURN_IF_ERROR(
        matcher_.announce(rank, kLaneChannel, send->tag, send->data.size, send->id, actions));
  }
  apply_locked(std::move(actions), todos);
  return absl::OkStatus();
}

void LaneCore::say_locked(int dst, const LaneRecord& record) {
  if (peer(dst).lost) return;
  peer(dst).queue.emplace_back(record);
  ++queued_;
}

bool LaneCore::flush_locked(int dst, Todos& todos) {
  Peer& to = peer(dst);
  bool wrote = false;
  while (!to.queue.empty()) {
    if (const auto* const record = std::get_if<LaneRecord>(&to.queue.front())) {
      if (!to.out->fits(0)) break;
      to.out->write(*record);
      wrote = true;
    } else {
      const SendPtr send = std::get<SendPtr>(to.queue.front());
      if (!write_locked(to, send, wrote, todos)) break;
    }
    to.queue.pop_front();
    --queued_;
  }
  if (to.out->spoilt()) {
    lose_locked(dst, absl::InvalidArgumentError("says that it has read what was not written"), todos);
    return wrote;
  }
  // It may have made room before it could know that it is wanted.
  const bool full = !to.queue.empty();
  if (to.out->want_room(full) && full && flush_locked(dst, todos)) return true;
  if (full) todos.full.push_back(dst);
  if (wrote) {
    todos.written.push_back(dst);
    note_core();
  }
  return wrote;
}

bool LaneCore::write_locked(Peer& to, const SendPtr& send, bool& wrote, Todos& todos) {
  const auto write = [&](const LaneRecord& record) {
    to.out->write(record);
    wrote = true;
  };
  if (send->stage == LaneSend::Stage::kQueued) {
    const bool whole = send->eager && send->data.size <= kWholeBytes;
    if (!to.out->fits(whole ? send->data.size : 0)) return false;
    if (whole) {
      write(eager_record(send->tag, send->data));
      finish_locked(send, absl::OkStatus(), todos);
      return true;
    }
    write({.kind = send->eager ? LaneKind::kBegin : LaneKind::kAnnounce,
           .tag = send->tag,
           .size = send->data.size,
           .id = send->id});
    send->stage = send->eager ? LaneSend::Stage::kWriting : LaneSend::Stage::kAnnounced;
    if (!send->eager) return true;
  }
  while (send->written < send->data.size) {
    const std::size_t bytes = std::min(kLanePieceBytes, send->data.size - send->written);
    if (!to.out->fits(bytes)) return false;
    write({.kind = LaneKind::kPiece,
           .size = bytes,
           .id = send->id,
           .payload = static_cast<const char*>(send->data.data) + send->written});
    send->written += bytes;
  }
  finish_locked(send, absl::OkStatus(), todos);
  return true;
}

void LaneCore::settle_locked(LaneSend& send) {
  if (std::exchange(send.counted, false)) --peer(send.dst).announced;
}

void LaneCore::end_send_locked(const SendPtr& send, absl::Status status, Todos& todos) {
  const absl::StatusCode code = status.code();
  finish_locked(send, std::move(status), todos);
  if (send->dst == options_.rank) {
    Actions actions;
    if (send->stage == LaneSend::Stage::kAnnounced) matcher_.withdraw(options_.rank, send->id, code, actions);
    apply_locked(std::move(actions), todos);
    return;
  }
  Peer& to = peer(send->dst);
  const auto queued = std::find_if(to.queue.begin(), to.queue.end(), [&](const auto& entry) {
    const auto* const other = std::get_if<SendPtr>(&entry);
    return other != nullptr && *other == send;
  });
  const bool known = send->stage != LaneSend::Stage::kQueued;
  if (queued != to.queue.end()) {
    if (known) {
      *queued = withdrawal(*send, code);
    } else {
      if (send->eager) to.eager_bytes -= send->data.size + kMessageCost;
      to.queue.erase(queued);
      --queued_;
    }
  } else if (known && !to.lost) {
    say_locked(send->dst, withdrawal(*send, code));
  }
  if (!to.lost) flush_locked(send->dst, todos);
}

void LaneCore::on_ask_locked(int src, uint64_t id) {
  const auto found = sends_.find(id);
  // It may have ended meanwhile.
  if (found == sends_.end()) return;
  const SendPtr& send = found->second;
  if (send->dst != src || send->stage != LaneSend::Stage::kAnnounced) return;
  settle_locked(*send);
  send->stage = LaneSend::Stage::kWriting;
  peer(src).queue.emplace_back(send);
  ++queued_;
}

void LaneCore::on_refuse_locked(int src, uint64_t id, absl::StatusCode code, uint64_t size, Todos& todos) {
  const auto found = sends_.find(id);
  if (found == sends_.end()) return;
  const SendPtr send = found->second;
  if (send->dst != src || send->stage != LaneSend::Stage::kAnnounced) return;
  const std::string name = matcher_.name_of(kLaneChannel, src);
  finish_locked(send,
                code == absl::StatusCode::kInvalidArgument
                    ? absl::InvalidArgumentError(absl::StrCat("a message of ", send->data.size,
                                                              " bytes (tag ", send->tag, ") came to ", name,
                                                              " for a receive of ", size, " bytes"))
                    : absl::Status(code, absl::StrCat(name, " does not take a message (tag ", send->tag,
                                                      "): ", absl::StatusCodeToString(code))),
                todos);
}

}  // namespace gradwire::collectives::cpu
