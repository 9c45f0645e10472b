#include "gradwire/collectives/cpu/p2p/endpoint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

using Kind = Effect::Kind;

Endpoint::Endpoint(const Options& options)
    : options_(options),
      matcher_(options.rank, options.size, channels_, options.eager_window),
      sends_(options.size, options.eager_bytes, options.max_pending_rts, options.eager_window) {}

absl::Status Endpoint::check(int rank) const {
  if (rank >= 0 && rank < options_.size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no rank ", rank, " in a ", options_.whole, " of ", options_.size));
}

absl::Status Endpoint::check_open(int dst, uint64_t channel) const {
  if (!closed_.ok()) return closed_;
  if (channels_.ended(channel)) return channels_.state(channel);
  return matcher_.gone(channel, dst);
}

void Endpoint::send(const SendPtr& send, Effects& effects) {
  absl::Status refused = check(send->peer);
  if (refused.ok()) refused = check_open(send->peer, send->channel);
  if (refused.ok()) refused = sends_.add(send, next_id_++, channels_.name_of(send->channel, send->peer));
  if (!refused.ok()) {
    effects.push_back({.kind = Kind::kEndSend, .send = send, .status = std::move(refused)});
    return;
  }
  next_deadline_ = std::min(next_deadline_, send->deadline);
  if (send->peer == options_.rank) {
    send_to_self(send, effects);
  } else {
    sends_.enqueue(send, effects);
  }
}

void Endpoint::send_to_self(const SendPtr& send, Effects& effects) {
  const int self = options_.rank;
  Matcher::Actions actions;
  absl::Status status;
  if (send->eager) {
    status = matcher_.eager(self, send->channel, send->tag,
                            Payload::copy_of(send->data.data, send->data.size), actions);
  } else {
    send->stage = Send::Stage::kRtsSent;
    status = matcher_.announce(self, send->channel, send->tag, send->data.size, send->id, actions);
  }
  if (send->eager || !status.ok()) sends_.finish(send, std::move(status), effects);
  apply(std::move(actions), effects);
}

// The receive for a message of this rank's own: 1. the data goes into it; 2. the send is done.
void Endpoint::clear_self(uint64_t id, Effects& effects) {
  const SendPtr send = sends_.find_pending_rts(options_.rank, id);
  if (send == nullptr) return;
  Matcher::Actions actions;
  (void)matcher_.data(options_.rank, id, Payload(send->data.data, send->data.size), actions);
  apply(std::move(actions), effects);
  sends_.finish(send, absl::OkStatus(), effects);
}

void Endpoint::receive(const ReceivePtr& receive, Effects& effects) {
  absl::Status refused = receive->peer == kAnyRank ? absl::OkStatus() : check(receive->peer);
  if (refused.ok()) refused = closed_;
  if (!refused.ok()) {
    effects.push_back({.kind = Kind::kEndReceive, .receive = receive, .status = std::move(refused)});
    return;
  }
  receive->id = next_id_++;
  receives_.emplace(receive->id, receive);
  next_deadline_ = std::min(next_deadline_, receive->deadline);
  Matcher::Actions actions;
  matcher_.post(receive->id, receive->peer, receive->channel, receive->tag, receive->data.size, actions);
  apply(std::move(actions), effects);
}

void Endpoint::end(const SendPtr& send, absl::Status status, Effects& effects) {
  if (!sends_.contains(*send)) return;
  if (send->peer != options_.rank) {
    sends_.end(send, std::move(status), effects);
    return;
  }
  Matcher::Actions actions;
  matcher_.withdraw(options_.rank, send->id, status.code(), actions);
  sends_.finish(send, std::move(status), effects);
  apply(std::move(actions), effects);
}

void Endpoint::end(const ReceivePtr& receive, absl::Status status, Effects& effects) {
  if (!contains(*receive)) return;
  matcher_.cancel(receive->id);
  effects.push_back({.kind = Kind::kEndReceive, .receive = receive, .status = std::move(status)});
  receives_.erase(receive->id);
}

void Endpoint::abort(uint64_t channel, const absl::Status& reason, Effects& effects) {
  if (channels_.abort(channel, reason)) end(channel, reason, effects);
}

void Endpoint::forget(uint64_t channel, Effects& effects) {
  end(channel, channels_.forget(channel), effects);
}

void Endpoint::end(uint64_t channel, const absl::Status& reason, Effects& effects) {
  // Before the matcher refuses those to this rank itself, with less to say.
  for (const SendPtr& send : sends_.select([&](const Send& each) { return each.channel == channel; }))
    end(send, reason, effects);
  Matcher::Actions actions;
  matcher_.clear(channel, reason, actions);
  apply(std::move(actions), effects);
}

void Endpoint::close(const absl::Status& reason, Effects& effects) {
  if (!closed_.ok()) return;
  closed_ = reason;
  // Other ranks are to hear that this one has left, rather than what becomes of each message.
  for (int rank = 0; rank < options_.size; ++rank) sends_.outboxes().close(rank);
  for (const SendPtr& send : sends_.select([](const Send&) { return true; })) end(send, reason, effects);
  while (!receives_.empty()) end(ReceivePtr(receives_.begin()->second), reason, effects);
}

void Endpoint::expire(absl::Time now, Effects& effects) {
  const auto late = [&](absl::Time deadline) {
    if (deadline > now) next_deadline_ = std::min(next_deadline_, deadline);
    return deadline <= now;
  };
  next_deadline_ = absl::InfiniteFuture();
  for (const SendPtr& send : sends_.select([&](const Send& each) { return late(each.deadline); })) {
    end(send,
        absl::DeadlineExceededError(absl::StrCat(channels_.name_of(send->channel, send->peer),
                                                 " has not taken a message of ", send->data.size,
                                                 " bytes (tag ", send->tag, ") in time")),
        effects);
  }
  std::vector<ReceivePtr> receives;
  for (const auto& [id, receive] : receives_) {
    if (late(receive->deadline)) receives.push_back(receive);
  }
  for (const ReceivePtr& receive : receives) {
    const std::string from =
        receive->peer == kAnyRank ? "any rank" : channels_.name_of(receive->channel, receive->peer);
    end(receive,
        absl::DeadlineExceededError(
            absl::StrCat("no message (tag ", receive->tag, ") has come from ", from, " in time")),
        effects);
  }
}

absl::Status Endpoint::on_frame(int src, const Frame& frame, Payload payload, Effects& effects) {
  // It came while another thread lost the rank.
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status;
  switch (frame.kind) {
    case FrameKind::kEager:
      status = matcher_.eager(src, frame.channel, frame.tag, std::move(payload), actions);
      break;
    case FrameKind::kRts:
    case FrameKind::kBegin:
      if (frame.id == 0) return absl::InvalidArgumentError("a message is announced with id 0");
      status = matcher_.announce(src, frame.channel, frame.tag, frame.size, frame.id, actions);
      break;
    case FrameKind::kData:
      status = matcher_.data(src, frame.id, std::move(payload), actions);
      break;
    case FrameKind::kCancel:
      if (!is_error_code(frame.code)) return absl::InvalidArgumentError("kCancel without an error code");
      matcher_.withdraw(src, frame.id, static_cast<absl::StatusCode>(frame.code), actions);
      break;
    case FrameKind::kCts:
      sends_.on_clear(src, frame.id, effects);
      break;
    case FrameKind::kNack:
      if (!is_error_code(frame.code)) return absl::InvalidArgumentError("kNack without an error code");
      on_nack(src, frame.id, static_cast<absl::StatusCode>(frame.code), frame.size, effects);
      break;
    case FrameKind::kCredit:
      status = sends_.return_window(src, frame.size);
      break;
    default:
      status = absl::InvalidArgumentError(absl::StrCat("a frame of kind ", static_cast<int>(frame.kind)));
  }
  apply(std::move(actions), effects);
  return status;
}

absl::Status Endpoint::on_came(int src, uint64_t message, Payload payload, Effects& effects) {
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status = matcher_.came(src, message, std::move(payload), actions);
  apply(std::move(actions), effects);
  return status;
}

absl::Status Endpoint::on_passed(int src, uint64_t size, Effects& effects) {
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status = matcher_.passed(src, size, actions);
  if (!actions.empty()) apply(std::move(actions), effects);
  return status;
}

void Endpoint::on_nack(int from, uint64_t id, absl::StatusCode code, uint64_t size, Effects& effects) {
  const SendPtr send = sends_.find_pending_rts(from, id);
  if (send == nullptr) return;
  const std::string name = channels_.name_of(send->channel, from);
  sends_.on_nack(from, id,
                 code == absl::StatusCode::kInvalidArgument
                     ? absl::InvalidArgumentError(absl::StrCat("a message of ", send->data.size,
                                                               " bytes (tag ", send->tag, ") came to ", name,
                                                               " for a receive of ", size, " bytes"))
                     : absl::Status(code, absl::StrCat(name, " does not take a message (tag ", send->tag,
                                                       "): ", absl::StatusCodeToString(code))),
                 effects);
}

void Endpoint::fail_sends(int rank, const absl::Status& reason, Effects& effects) {
  for (const SendPtr& send : sends_.select([&](const Send& each) { return each.peer == rank; })) {
    end(send,
        absl::Status(reason.code(),
                     absl::StrCat(channels_.name_of(send->channel, rank), " ", reason.message())),
        effects);
  }
}

void Endpoint::lose(int rank, const absl::Status& reason, Effects& effects) {
  if (matcher_.is_lost(rank)) return;
  Matcher::Actions actions;
  matcher_.lost(rank, reason, actions);
  sends_.outboxes().close(rank);
  apply(std::move(actions), effects);
  fail_sends(rank, reason, effects);
}

void Endpoint::apply(Matcher::Actions actions, Effects& effects) {
  using ActionKind = Matcher::Action::Kind;
  for (Matcher::Action& action : actions) {
    const bool own = action.src == options_.rank;
    switch (action.kind) {
      case ActionKind::kDeliver:
      case ActionKind::kFail: {
        const auto found = receives_.find(action.receive);
        if (found == receives_.end()) break;
        effects.push_back({.kind = action.kind == ActionKind::kDeliver ? Kind::kDeliver : Kind::kEndReceive,
                           .rank = action.src,
                           .receive = std::move(found->second),
                           .status = std::move(action.status),
                           .payload = std::move(action.payload)});
        receives_.erase(found);
        break;
      }
      case ActionKind::kClear:
        if (own) {
          clear_self(action.message, effects);
        } else {
          effects.push_back({.kind = Kind::kClear,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kCts, .id = action.message},
                             .receive = receives_[action.receive]});
        }
        break;
      case ActionKind::kNack:
        if (own) {
          on_nack(action.src, action.message, action.status.code(), action.bytes, effects);
        } else {
          effects.push_back({.kind = Kind::kReply,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kNack,
                                       .code = static_cast<uint32_t>(action.status.code()),
                                       .size = action.bytes,
                                       .id = action.message}});
        }
        break;
      case ActionKind::kCredit:
        if (own) {
          (void)sends_.return_window(action.src, action.bytes);
        } else {
          effects.push_back({.kind = Kind::kReply,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kCredit, .size = action.bytes}});
        }
        break;
    }
  }
}

}  // namespace gradwire::collectives::cpu
