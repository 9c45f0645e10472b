// Writing and reading the records of one pair of rings. Writing: flush() takes entries from the outbox with
// begin(), and sends long messages piece by piece. Reading: read() handles one record with on_record(). A
// message that arrives in pieces has an Incoming from its kBegin or its CTS until its last piece or its
// kCancel.

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

// The window is charged last, because a failed check must leave nothing behind.
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
    // All pieces are in the ring, or the message is empty: kData of an empty message has no record, and the
    // reader does not wait for one (set_receive).
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

// The entry decides what is written:
// - A short eager message: one record, and the message is sent.
// - A long eager message: kBegin. flush() writes the pieces.
// - kData: nothing. flush() writes the pieces.
// - kRts, and frames without a message: one record.
// The check for room comes before take(), after which the entry belongs to this port.
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
  // The RTS is in the ring, which is all that the carrier does with it. The reader may already have answered.
  if (record.kind == FrameKind::kRts) sends.rts_sent(next.send, absl::OkStatus(), effects);
  return true;
}

// The reader has a part of the message, or waits for it, so it is sent a kCancel (known).
void ShmPort::retract(const SendPtr& send, Effects& effects) {
  if (!writing_.has_value() || writing_->send != send) return;
  writing_.reset();
  endpoint_.sends().unsent(send, /*known=*/true, absl::OkStatus(), effects);
}

void ShmPort::reset() {
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
  // A malformed record stays in the ring: read() will find it and lose the rank.
  if (!record.ok() || record->kind != FrameKind::kEager || record->tag != tag || record->size != data.size)
    return false;
  if (!endpoint_.on_bypassed(rank_, record->size, effects).ok()) return false;
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
      // The matcher does not know a discarded message any more, but its pieces still arrive.
      if (streams_.contains(record.id)) return bad_record("RTS for a message that is in progress");
      break;
    default:
      break;
  }
  Payload payload;
  if (record.kind == FrameKind::kEager) {
    // If a receive is posted, the message is copied only once: from the ring into the receive.
    payload = endpoint_.matcher().has_receive_for(rank_, kShmChannel, record.tag)
                  ? Payload(const_cast<char*>(record.payload), record.size)
                  : Payload::copy_of(record.payload, record.size);
  }
  return endpoint_.on_frame(rank_, frame_of(record), std::move(payload), effects);
}

// An eager message in pieces. The Matcher handles it like an announced message, until all pieces have
// arrived. The size is bounded by the window, because memory of this size may be allocated before the window
// is charged. Only one such message is in progress at a time, so a hostile writer cannot multiply that
// memory.
absl::Status ShmPort::on_begin(const RingRecord& record, Effects& effects) {
  if (record.size == 0 || record.size > kEagerWindow) return bad_record("kBegin with an invalid size");
  if (eager_stream_ != 0) return bad_record("kBegin within another eager message");
  auto [stream, inserted] = streams_.try_emplace(record.id);
  if (!inserted) return bad_record("duplicate kBegin");
  stream->second.size = record.size;
  stream->second.eager = true;
  eager_stream_ = record.id;
  return endpoint_.on_frame(rank_, frame_of(record), {}, effects);
}

// The stream ends here: no piece of the message follows its kCancel in the ring.
absl::Status ShmPort::on_cancel(const RingRecord& record, Effects& effects) {
  if (!is_error_code(record.code)) return bad_record("kCancel without an error code");
  const auto stream = streams_.find(record.id);
  if (stream != streams_.end()) {
    // The sender has charged the whole message to its window and does not release it, because the reader
    // knows of the message. So return the bytes here.
    if (stream->second.eager)
      GRADWIRE_RETURN_IF_ERROR(endpoint_.on_bypassed(rank_, stream->second.size, effects));
    if (eager_stream_ == record.id) eager_stream_ = 0;
    streams_.erase(stream);
  }
  return endpoint_.on_frame(rank_, frame_of(record), {}, effects);
}

// Two cases:
// - No stream: the message was announced with kRts. The stream begins, and the sender needs a CTS.
// - A stream: the message began with kBegin, and its sender sends without a CTS. The pieces that were
//   buffered so far move into the receive.
bool ShmPort::set_receive(const ReceivePtr& receive, uint64_t message, Effects& effects) {
  auto [entry, inserted] = streams_.try_emplace(message);
  Incoming& stream = entry->second;
  if (inserted) stream.size = receive->data.size;
  stream.receive = receive;
  copy_bytes(receive->data.data, stream.held.get(), stream.received);
  stream.held = nullptr;
  // No piece will arrive for an empty message.
  if (stream.size == 0) (void)end_stream(message, effects);
  return inserted;
}

// A message that began with kBegin cannot be stopped. The stream remains, and its pieces are dropped as they
// arrive.
bool ShmPort::discard(uint64_t message) {
  const auto stream = streams_.find(message);
  if (stream == streams_.end()) return true;
  stream->second.unwanted = true;
  stream->second.held = nullptr;
  return false;
}

absl::Status ShmPort::on_piece(const RingRecord& record, Effects& effects) {
  const auto found = streams_.find(record.id);
  if (found == streams_.end()) return bad_record("unexpected data: no CTS was sent for the message");
  Incoming& stream = found->second;
  if (record.size == 0 || record.size > stream.size - stream.received)
    return bad_record("more data than announced");
  if (stream.receive == nullptr && !stream.unwanted && stream.held == nullptr)
    stream.held = std::make_unique_for_overwrite<char[]>(stream.size);
  // The memory of a receive that has ended must not be written.
  const bool wanted = stream.receive != nullptr && endpoint_.contains(*stream.receive);
  char* const to = wanted ? static_cast<char*>(stream.receive->data.data) : stream.held.get();
  if (to != nullptr) std::memcpy(to + stream.received, record.payload, record.size);
  stream.received += record.size;
  return stream.received < stream.size ? absl::OkStatus() : end_stream(record.id, effects);
}

// The last piece has arrived:
// 1. Remove the stream.
// 2. If no receive was found, hand the buffered message to the Matcher, where it waits as an eager message.
// 3. Otherwise return the bytes of an eager message to the window, and report the data to the Matcher, which
//    completes the receive. The payload is the memory of the receive itself, so nothing is copied again
//    (copy_bytes).
absl::Status ShmPort::end_stream(uint64_t id, Effects& effects) {
  auto entry = streams_.extract(id);
  Incoming& stream = entry.mapped();
  if (eager_stream_ == id) eager_stream_ = 0;
  if (stream.held != nullptr) {
    // The message is complete and continues to wait for a receive.
    return endpoint_.on_buffered(rank_, id, Payload::copy_of(stream.held.get(), stream.size), effects);
  }
  if (stream.eager) GRADWIRE_RETURN_IF_ERROR(endpoint_.on_bypassed(rank_, stream.size, effects));
  if (stream.unwanted) return absl::OkStatus();
  void* const data = stream.receive == nullptr ? nullptr : stream.receive->data.data;
  const Frame frame{.kind = FrameKind::kData, .size = stream.size, .id = id};
  return endpoint_.on_frame(rank_, frame, Payload(data, stream.size), effects);
}

}  // namespace gradwire::collectives::cpu
