#include "gradwire/collectives/cpu/shm_p2p/shm_port.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::collectives::cpu {
namespace {

absl::Status bad_record(const char* why) { return absl::InvalidArgumentError(why); }

RingRecord eager_record(int64_t tag, Span data) {
  return {.tag = tag, .size = data.size, .payload = static_cast<const char*>(data.data)};
}

Frame frame_of(const RingRecord& record) {
  return {.kind = record.kind,
          .code = record.code,
          .channel = kShmChannel,
          .tag = record.tag,
          .size = record.size,
          .id = record.id};
}

}  // namespace

bool ShmPort::try_write(int64_t tag, Span data) {
  if (data.size > kShmWholeBytes || has_more() || !out_.fits(data.size) ||
      !endpoint_.sends().take_window(rank_, data.size)) {
    return false;
  }
  out_.write(eager_record(tag, data));
  return true;
}

bool ShmPort::flush(Effects& effects) {
  bool wrote = false;
  while (has_more()) {
    if (!writing_.has_value()) {
      if (!begin(effects)) break;
      wrote = true;
      continue;
    }
    const SendPtr& send = writing_->send;
    const std::size_t bytes = std::min(kRingPieceBytes, send->data.size - writing_->written);
    if (bytes == 0) {
      endpoint_.sends().sent(send, effects);
      writing_.reset();
      continue;
    }
    if (!out_.fits(bytes)) break;
    out_.write({.kind = FrameKind::kData,
                .size = bytes,
                .id = send->id,
                .payload = static_cast<const char*>(send->data.data) + writing_->written});
    writing_->written += bytes;
    wrote = true;
  }
  return wrote;
}

bool ShmPort::begin(Effects& effects) {
  SendTable& sends = endpoint_.sends();
  const SendTable::Outgoing& front = sends.outboxes().front(rank_);
  const bool eager = front.frame.kind == FrameKind::kEager;
  const bool whole = eager && front.send->data.size <= kShmWholeBytes;
  if (!out_.fits(whole ? front.send->data.size : 0)) return false;
  const SendTable::Outgoing next = sends.take(rank_);
  if (whole) {
    out_.write(eager_record(next.frame.tag, next.send->data));
    sends.sent(next.send, effects);
    return true;
  }
  if (eager || next.frame.kind == FrameKind::kData) writing_ = Writing{next.send};
  if (next.frame.kind == FrameKind::kData) return true;
  RingRecord record{.kind = eager ? FrameKind::kBegin : next.frame.kind,
                    .code = static_cast<uint8_t>(next.frame.code),
                    .tag = next.frame.tag,
                    .size = next.frame.size,
                    .id = eager ? next.send->id : next.frame.id};
  out_.write(record);
  if (record.kind == FrameKind::kRts) sends.rts_sent(next.send, absl::OkStatus(), effects);
  return true;
}

void ShmPort::retract(const SendPtr& send, Effects& effects) {
  if (!writing_.has_value() || writing_->send != send) return;
  writing_.reset();
  endpoint_.sends().unsent(send, /*known=*/true, absl::OkStatus(), effects);
}

void ShmPort::clear() {
  writing_.reset();
  streams_.clear();
}

bool ShmPort::next_is_eager() const {
  if (!in_.has_record()) return false;
  const absl::StatusOr<RingRecord> record = in_.peek();
  return record.ok() && record->kind == FrameKind::kEager;
}

bool ShmPort::try_take(int64_t tag, Span data, Effects& effects, bool& wake) {
  const absl::StatusOr<RingRecord> record = in_.peek();
  if (!record.ok() || record->kind != FrameKind::kEager || record->tag != tag || record->size != data.size)
    return false;
  if (!endpoint_.on_passed(rank_, record->size, effects).ok()) return false;
  copy_bytes(data.data, record->payload, data.size);
  wake = in_.release(*record);
  return true;
}

absl::Status ShmPort::read(Effects& effects, bool& wake) {
  GRADWIRE_ASSIGN_OR_RETURN(const RingRecord record, in_.peek());
  const std::size_t before = effects.size();
  GRADWIRE_RETURN_IF_ERROR(on_record(record, effects));
  // The writer may use the memory again once the record is released.
  for (std::size_t i = before; i < effects.size(); ++i) {
    if (effects[i].kind == Effect::Kind::kDeliver) take_payload(effects[i]);
  }
  wake = in_.release(record);
  return absl::OkStatus();
}

absl::Status ShmPort::on_record(const RingRecord& record, Effects& effects) {
  switch (record.kind) {
    case FrameKind::kBegin:
      return on_begin(record, effects);
    case FrameKind::kData:
      return on_piece(record, effects);
    case FrameKind::kCancel:
      return on_cancel(record, effects);
    case FrameKind::kRts:
      // The matcher knows nothing more of a message that nobody wanted, but its pieces still come.
      if (streams_.contains(record.id)) return bad_record("an announcement of a message that was begun");
      break;
    default:
      break;
  }
  Payload payload;
  if (record.kind == FrameKind::kEager) {
    // A message whose receive waits is copied once.
    payload = endpoint_.matcher().awaits(rank_, kShmChannel, record.tag)
                  ? Payload(const_cast<char*>(record.payload), record.size)
                  : Payload::copy_of(record.payload, record.size);
  }
  return endpoint_.on_frame(rank_, frame_of(record), std::move(payload), effects);
}

absl::Status ShmPort::on_begin(const RingRecord& record, Effects& effects) {
  if (record.size == 0 || record.size > kEagerWindow)
    return bad_record("a message is begun with a wrong size");
  if (unasked_ != 0) return bad_record("a message is begun within another");
  auto [stream, fresh] = streams_.try_emplace(record.id);
  if (!fresh) return bad_record("a message is begun twice");
  stream->second.size = record.size;
  stream->second.unasked = true;
  unasked_ = record.id;
  return endpoint_.on_frame(rank_, frame_of(record), {}, effects);
}

absl::Status ShmPort::on_cancel(const RingRecord& record, Effects& effects) {
  if (!is_error_code(record.code)) return bad_record("a message is cancelled without an error code");
  const auto stream = streams_.find(record.id);
  if (stream != streams_.end()) {
    if (stream->second.unasked)
      GRADWIRE_RETURN_IF_ERROR(endpoint_.on_passed(rank_, stream->second.size, effects));
    if (unasked_ == record.id) unasked_ = 0;
    streams_.erase(stream);
  }
  return endpoint_.on_frame(rank_, frame_of(record), {}, effects);
}

bool ShmPort::clear(const ReceivePtr& receive, uint64_t message, Effects& effects) {
  auto [entry, fresh] = streams_.try_emplace(message);
  Stream& stream = entry->second;
  if (fresh) stream.size = receive->data.size;
  stream.receive = receive;
  copy_bytes(receive->data.data, stream.held.get(), stream.got);
  stream.held = nullptr;
  if (stream.size == 0) (void)end_stream(message, effects);
  return fresh;
}

bool ShmPort::drop(uint64_t message) {
  const auto stream = streams_.find(message);
  if (stream == streams_.end()) return true;
  stream->second.unwanted = true;
  stream->second.held = nullptr;
  return false;
}

absl::Status ShmPort::on_piece(const RingRecord& record, Effects& effects) {
  const auto found = streams_.find(record.id);
  if (found == streams_.end()) return bad_record("data of a message that was not cleared to be sent");
  Stream& stream = found->second;
  if (record.size == 0 || record.size > stream.size - stream.got)
    return bad_record("more data than was announced");
  if (stream.receive == nullptr && !stream.unwanted && stream.held == nullptr)
    stream.held = std::make_unique_for_overwrite<char[]>(stream.size);
  // A receive that has ended is not written to.
  const bool wanted = stream.receive != nullptr && endpoint_.contains(*stream.receive);
  char* const to = wanted ? static_cast<char*>(stream.receive->data.data) : stream.held.get();
  if (to != nullptr) std::memcpy(to + stream.got, record.payload, record.size);
  stream.got += record.size;
  return stream.got < stream.size ? absl::OkStatus() : end_stream(record.id, effects);
}

absl::Status ShmPort::end_stream(uint64_t id, Effects& effects) {
  auto entry = streams_.extract(id);
  Stream& stream = entry.mapped();
  if (unasked_ == id) unasked_ = 0;
  if (stream.held != nullptr) {
    // It goes on waiting as a message that is here.
    return endpoint_.on_came(rank_, id, Payload::copy_of(stream.held.get(), stream.size), effects);
  }
  if (stream.unasked) GRADWIRE_RETURN_IF_ERROR(endpoint_.on_passed(rank_, stream.size, effects));
  if (stream.unwanted) return absl::OkStatus();
  void* const data = stream.receive == nullptr ? nullptr : stream.receive->data.data;
  const Frame frame{.kind = FrameKind::kData, .size = stream.size, .id = id};
  return endpoint_.on_frame(rank_, frame, Payload(data, stream.size), effects);
}

}  // namespace gradwire::collectives::cpu
