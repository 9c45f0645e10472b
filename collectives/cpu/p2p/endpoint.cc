// Connects the two state machines of a rank: Matcher for its receives, and SendTable for its sends. Every
// function handles one event. It changes the tables, and appends what must be done outside of them to
// `effects`.
//
// A message of a rank to itself does not go through a carrier. It passes through the same Matcher, and
// apply() handles the Matcher's answers to it at once.

#include "gradwire/collectives/cpu/p2p/endpoint.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {

using EffectKind = Effect::Kind;

Endpoint::Endpoint(const Options& options)
    : options_(options),
      matcher_(options.rank, options.size, channels_, options.eager_window),
      sends_(options.size, options.eager_bytes, options.max_pending_rts, options.eager_window) {}

absl::Status Endpoint::check(int rank) const {
  if (rank >= 0 && rank < options_.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("invalid rank ", rank, ": expected 0 to ", options_.size - 1,
                                                 " in a ", options_.whole, " of ", options_.size));
}

absl::Status Endpoint::check_open(int dst, uint64_t channel) const {
  if (!closed_.ok()) return closed_;
  if (channels_.ended(channel)) return channels_.state(channel);
  return matcher_.lost_status(channel, dst);
}

void Endpoint::send(const SendPtr& send, Effects& effects) {
  absl::Status status = check(send->peer);
  if (status.ok()) status = check_open(send->peer, send->channel);
  if (status.ok()) status = sends_.add(send, next_id_++, channels_.name_of(send->channel, send->peer));
  if (!status.ok()) {
    effects.push_back({.kind = EffectKind::kEndSend, .send = send, .status = std::move(status)});
    return;
  }
  // next_deadline_ is a lower bound: it is not raised when an operation ends. expire() computes it again.
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
    status = matcher_.on_eager(self, send->channel, send->tag,
                               Payload::copy_of(send->data.data, send->data.size), actions);
  } else {
    send->stage = Send::Stage::kRtsSent;
    status = matcher_.on_rts(self, send->channel, send->tag, send->data.size, send->id, actions);
  }
  // An eager message was copied, so the send has succeeded. A longer message stays in the table:
  // cts_to_self() finishes it when a receive is found, which may happen inside apply().
  if (send->eager || !status.ok()) sends_.finish(send, std::move(status), effects);
  apply(std::move(actions), effects);
}

// A receive was found for a message of this rank to itself:
// 1. Deliver the data to the receive, directly from the sender's memory.
// 2. End the send, whose memory may be reused from then on.
void Endpoint::cts_to_self(uint64_t id, Effects& effects) {
  const SendPtr send = sends_.find_pending_rts(options_.rank, id);
  if (send == nullptr) return;
  Matcher::Actions actions;
  (void)matcher_.on_data(options_.rank, id, Payload(send->data.data, send->data.size), actions);
  apply(std::move(actions), effects);
  sends_.finish(send, absl::OkStatus(), effects);
}

void Endpoint::receive(const ReceivePtr& receive, Effects& effects) {
  absl::Status status = receive->peer == kAnyRank ? absl::OkStatus() : check(receive->peer);
  if (status.ok()) status = closed_;
  if (!status.ok()) {
    effects.push_back({.kind = EffectKind::kEndReceive, .receive = receive, .status = std::move(status)});
    return;
  }
  receive->id = next_id_++;
  receives_.emplace(receive->id, receive);
  next_deadline_ = std::min(next_deadline_, receive->deadline);
  Matcher::Actions actions;
  matcher_.post(receive->id, receive->peer, receive->channel, receive->tag, receive->data.size, actions);
  apply(std::move(actions), effects);
}

// A message to this rank itself is never in use by a carrier, so it ends at once. The Matcher must forget it
// first, because a later receive would otherwise find no send for it.
void Endpoint::end(const SendPtr& send, absl::Status status, Effects& effects) {
  if (!sends_.contains(*send)) return;
  if (send->peer != options_.rank) {
    sends_.end(send, std::move(status), effects);
    return;
  }
  Matcher::Actions actions;
  matcher_.on_cancel(options_.rank, send->id, status.code(), actions);
  sends_.finish(send, std::move(status), effects);
  apply(std::move(actions), effects);
}

void Endpoint::end(const ReceivePtr& receive, absl::Status status, Effects& effects) {
  if (!contains(*receive)) return;
  matcher_.cancel(receive->id);
  effects.push_back({.kind = EffectKind::kEndReceive, .receive = receive, .status = std::move(status)});
  receives_.erase(receive->id);
}

void Endpoint::abort(uint64_t channel, const absl::Status& reason, Effects& effects) {
  if (channels_.abort(channel, reason)) end(channel, reason, effects);
}

void Endpoint::forget(uint64_t channel, Effects& effects) {
  end(channel, channels_.forget(channel), effects);
}

void Endpoint::end(uint64_t channel, const absl::Status& reason, Effects& effects) {
  // The sends end first. Otherwise the matcher would refuse the messages to this rank itself with a less
  // precise error.
  for (const SendPtr& send : sends_.select([&](const Send& each) { return each.channel == channel; }))
    end(send, reason, effects);
  Matcher::Actions actions;
  matcher_.end_channel(channel, reason, actions);
  apply(std::move(actions), effects);
}

// Messages that have arrived stay in the Matcher. They are dropped with the endpoint: receive() refuses later
// receives.
void Endpoint::close(const absl::Status& reason, Effects& effects) {
  if (!closed_.ok()) return;
  closed_ = reason;
  // Close the outboxes first: other ranks must learn that this rank has left, not what becomes of each
  // message.
  for (int rank = 0; rank < options_.size; ++rank) sends_.outboxes().close(rank);
  for (const SendPtr& send : sends_.select([](const Send&) { return true; })) end(send, reason, effects);
  while (!receives_.empty()) end(ReceivePtr(receives_.begin()->second), reason, effects);
}

void Endpoint::expire(absl::Time now, Effects& effects) {
  const auto late = [&](absl::Time deadline) {
    if (deadline > now) next_deadline_ = std::min(next_deadline_, deadline);
    return deadline <= now;
  };
  // The two loops below visit all operations. `late` collects the earliest deadline of those that remain.
  next_deadline_ = absl::InfiniteFuture();
  for (const SendPtr& send : sends_.select([&](const Send& each) { return late(each.deadline); })) {
    end(send,
        absl::DeadlineExceededError(absl::StrCat("timed out: ", channels_.name_of(send->channel, send->peer),
                                                 " has not received a message of ", send->data.size,
                                                 " bytes (tag ", send->tag, ")")),
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
            absl::StrCat("timed out: no message (tag ", receive->tag, ") arrived from ", from)),
        effects);
  }
}

absl::Status Endpoint::on_frame(int src, const Frame& frame, Payload payload, Effects& effects) {
  // The frame arrived while another thread lost the rank.
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status;
  switch (frame.kind) {
    case FrameKind::kEager:
      status = matcher_.on_eager(src, frame.channel, frame.tag, std::move(payload), actions);
      break;
    case FrameKind::kRts:
    case FrameKind::kBegin:
      // The Matcher marks eager messages with id 0.
      if (frame.id == 0) return absl::InvalidArgumentError("RTS with id 0");
      status = matcher_.on_rts(src, frame.channel, frame.tag, frame.size, frame.id, actions);
      break;
    case FrameKind::kData:
      status = matcher_.on_data(src, frame.id, std::move(payload), actions);
      break;
    case FrameKind::kCancel:
      if (!is_error_code(frame.code)) return absl::InvalidArgumentError("kCancel without an error code");
      matcher_.on_cancel(src, frame.id, static_cast<absl::StatusCode>(frame.code), actions);
      break;
    case FrameKind::kCts:
      sends_.on_cts(src, frame.id, effects);
      break;
    case FrameKind::kNack:
      if (!is_error_code(frame.code)) return absl::InvalidArgumentError("kNack without an error code");
      on_nack(src, frame.id, static_cast<absl::StatusCode>(frame.code), frame.size, effects);
      break;
    case FrameKind::kCredit:
      status = sends_.on_credit(src, frame.size);
      break;
    default:
      status =
          absl::InvalidArgumentError(absl::StrCat("unexpected frame of kind ", static_cast<int>(frame.kind)));
  }
  apply(std::move(actions), effects);
  return status;
}

absl::Status Endpoint::on_buffered(int src, uint64_t message, Payload payload, Effects& effects) {
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status = matcher_.on_buffered(src, message, std::move(payload), actions);
  apply(std::move(actions), effects);
  return status;
}

absl::Status Endpoint::on_bypassed(int src, uint64_t size, Effects& effects) {
  if (matcher_.is_lost(src)) return absl::OkStatus();
  Matcher::Actions actions;
  absl::Status status = matcher_.on_bypassed(src, size, actions);
  if (!actions.empty()) apply(std::move(actions), effects);
  return status;
}

// `size` is the size of the receive, with InvalidArgument only. An answer that arrives after the end of the
// message is ignored.
void Endpoint::on_nack(int from, uint64_t id, absl::StatusCode code, uint64_t size, Effects& effects) {
  const SendPtr send = sends_.find_pending_rts(from, id);
  if (send == nullptr) return;
  const std::string name = channels_.name_of(send->channel, from);
  sends_.on_nack(
      from, id,
      code == absl::StatusCode::kInvalidArgument
          ? absl::InvalidArgumentError(absl::StrCat("message size mismatch: ", name, " got ", send->data.size,
                                                    " bytes (tag ", send->tag, "), expected ", size))
          : absl::Status(code, absl::StrCat(name, " refused a message (tag ", send->tag,
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

// 1. Fail the receives that wait for the rank.
// 2. Close its outbox, so that the kCancel frames of step 3 are dropped: nothing can be sent to the rank.
// 3. Fail the sends. Those that the carrier is using end when the carrier releases their memory.
void Endpoint::lose(int rank, const absl::Status& reason, Effects& effects) {
  if (matcher_.is_lost(rank)) return;
  Matcher::Actions actions;
  matcher_.on_lost(rank, reason, actions);
  sends_.outboxes().close(rank);
  apply(std::move(actions), effects);
  fail_sends(rank, reason, effects);
}

// Actions that answer this rank itself are carried out here. They may cause further actions, which
// cts_to_self() applies in a nested call. The depth is small, because the data of a message causes no CTS.
void Endpoint::apply(Matcher::Actions actions, Effects& effects) {
  using ActionKind = Matcher::Action::Kind;
  for (Matcher::Action& action : actions) {
    const bool to_self = action.src == options_.rank;
    switch (action.kind) {
      case ActionKind::kDeliver:
      case ActionKind::kFail: {
        const auto found = receives_.find(action.receive);
        if (found == receives_.end()) break;
        effects.push_back(
            {.kind = action.kind == ActionKind::kDeliver ? EffectKind::kDeliver : EffectKind::kEndReceive,
             .rank = action.src,
             .receive = std::move(found->second),
             .status = std::move(action.status),
             .payload = std::move(action.payload)});
        receives_.erase(found);
        break;
      }
      case ActionKind::kCts:
        if (to_self) {
          cts_to_self(action.message, effects);
        } else {
          effects.push_back({.kind = EffectKind::kCts,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kCts, .id = action.message},
                             .receive = receives_[action.receive]});
        }
        break;
      case ActionKind::kNack:
        if (to_self) {
          on_nack(action.src, action.message, action.status.code(), action.bytes, effects);
        } else {
          effects.push_back({.kind = EffectKind::kReply,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kNack,
                                       .code = static_cast<uint32_t>(action.status.code()),
                                       .size = action.bytes,
                                       .id = action.message}});
        }
        break;
      case ActionKind::kCredit:
        if (to_self) {
          (void)sends_.on_credit(action.src, action.bytes);
        } else {
          effects.push_back({.kind = EffectKind::kReply,
                             .rank = action.src,
                             .frame = {.kind = FrameKind::kCredit, .size = action.bytes}});
        }
        break;
    }
  }
}

}  // namespace gradwire::collectives::cpu
