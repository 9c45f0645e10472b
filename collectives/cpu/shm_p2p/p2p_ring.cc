#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {
namespace {

// After how many cells, and what part of the payload's room, the reader says so at the latest.
constexpr uint64_t kCellsUnsaid = kRingCells / 8;
constexpr std::size_t kPartUnsaid = 8;
constexpr std::size_t kLine = 64;

constexpr auto relaxed = std::memory_order_relaxed;

std::size_t to_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

bool is_used(uint8_t kind) {
  return kind >= static_cast<uint8_t>(FrameKind::kEager) && kind <= static_cast<uint8_t>(FrameKind::kBegin) &&
         kind != static_cast<uint8_t>(FrameKind::kGoodbye);
}
bool has_payload(FrameKind kind) { return kind == FrameKind::kEager || kind == FrameKind::kData; }
bool is_inline(FrameKind kind, std::size_t bytes) {
  return kind == FrameKind::kEager && bytes <= kRingInlineBytes;
}

}  // namespace

uint64_t P2pRingWriter::place_of(std::size_t payload) const {
  const uint64_t offset = next_ % data_bytes_;
  return offset + payload > data_bytes_ ? next_ + data_bytes_ - offset : next_;
}

bool P2pRingWriter::has_room(std::size_t payload) const {
  if (written_ - consumed_ >= kRingCells) return false;
  return payload == 0 || place_of(payload) + to_lines(payload) - free_ <= data_bytes_;
}

void P2pRingWriter::read_consumed() {
  const uint64_t consumed = head_->consumed.load(std::memory_order_acquire);
  if (consumed < consumed_ || consumed > written_) spoilt_ = true;
  if (spoilt_ || consumed == consumed_) return;
  consumed_ = consumed;
  free_ = ends_[(consumed - 1) % kRingCells];
  // What is used again soon is still in the caches.
  if (consumed == written_) next_ = free_ = (next_ + data_bytes_ - 1) / data_bytes_ * data_bytes_;
}

bool P2pRingWriter::fits(std::size_t payload) {
  // The reader's word is where the reader has it: looked at when it matters, and often enough to begin again
  // at the front.
  if (!has_room(payload) || (payload > 0 && next_ - free_ >= data_bytes_ / 4)) read_consumed();
  return !spoilt_ && has_room(payload);
}

void P2pRingWriter::write(const RingRecord& record) {
  Cell& to = cell(written_);
  const std::size_t bytes = has_payload(record.kind) ? record.size : 0;
  if (is_inline(record.kind, bytes)) {
    if (bytes > 0) std::memcpy(static_cast<void*>(&to.words[3]), record.payload, bytes);
  } else {
    if (bytes > 0) {
      const uint64_t place = place_of(bytes);
      next_ = place + to_lines(bytes);
      std::memcpy(data_ + place % data_bytes_, record.payload, bytes);
      to.words[5].store(place % data_bytes_, relaxed);
    }
    to.words[3].store(record.size, relaxed);
    to.words[4].store(record.id, relaxed);
  }
  to.words[2].store(static_cast<uint64_t>(record.tag), relaxed);
  to.words[1].store(static_cast<uint64_t>(record.kind) | uint64_t{record.code} << 8 | uint64_t{bytes} << 32,
                    relaxed);
  ends_[written_ % kRingCells] = next_;
  to.words[0].store(++written_, std::memory_order_release);
}

bool P2pRingWriter::want_room(bool yes) {
  if (wants_ == yes) return false;
  wants_ = yes;
  head_->wants_room.store(yes ? 1 : 0, relaxed);
  // Before the reader's place is looked at again; release() has the other half.
  if (yes) std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

absl::StatusOr<RingRecord> P2pRingReader::peek() const {
  const Cell& from = cell(read_);
  const uint64_t word = from.words[1].load(relaxed);
  RingRecord record;
  const auto kind = static_cast<uint8_t>(word);
  if (!is_used(kind)) return absl::InvalidArgumentError(absl::StrCat("a record of kind ", kind));
  record.kind = static_cast<FrameKind>(kind);
  record.code = static_cast<uint8_t>(word >> 8);
  record.tag = static_cast<int64_t>(from.words[2].load(relaxed));
  const std::size_t bytes = word >> 32;
  if (is_inline(record.kind, bytes)) {
    record.size = bytes;
    record.payload = reinterpret_cast<const char*>(&from.words[3]);
    return record;
  }
  record.size = from.words[3].load(relaxed);
  record.id = from.words[4].load(relaxed);
  // Without payload the word may be what an earlier message has left of its own.
  const uint64_t place = bytes > 0 ? from.words[5].load(relaxed) : 0;
  if (bytes > (has_payload(record.kind) ? kRingPieceBytes : 0) || place > data_bytes_ - bytes)
    return absl::InvalidArgumentError(absl::StrCat("a payload of ", bytes, " bytes at ", place));
  if (has_payload(record.kind)) record.size = bytes;
  record.payload = data_ + place;
  return record;
}

bool P2pRingReader::release(const RingRecord& record) {
  ++read_;
  if (has_payload(record.kind) && !is_inline(record.kind, record.size))
    unsaid_bytes_ += to_lines(record.size);
  if (read_ - said_ < kCellsUnsaid && unsaid_bytes_ < data_bytes_ / kPartUnsaid) return false;
  said_ = read_;
  unsaid_bytes_ = 0;
  head_->consumed.store(read_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return head_->wants_room.load(relaxed) != 0;
}

}  // namespace gradwire::collectives::cpu
