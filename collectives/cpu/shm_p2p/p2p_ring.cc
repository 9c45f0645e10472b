// The lock-free ring between two ranks. There are two pairs of a store and a load:
// - The writer stores the stamp of a cell with release order; the reader loads it with acquire order
//   (Probe::has_record). A reader that sees the stamp also sees the other words of the cell and the payload,
//   so these are stored and loaded with relaxed order.
// - The reader stores `consumed` with release order; the writer loads it with acquire order (read_consumed).
//   A writer that sees the number overwrites only cells and bytes that the reader has finished reading.
// The two fences, in want_room() and release(), are for wake-ups only.

#include "gradwire/collectives/cpu/shm_p2p/p2p_ring.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradwire::collectives::cpu {
namespace {

// The reader publishes `consumed` after this many cells, or when this part of the payload memory was used,
// whichever comes first.
constexpr uint64_t kMaxUnpublishedCells = kRingCells / 8;
constexpr std::size_t kUnpublishedPart = 8;
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

// Returns where a payload of this size goes. A payload is contiguous: if it does not fit before the end of
// the memory, it begins at the start, and the bytes in between are skipped. Positions only grow; modulo
// data_bytes_ they are offsets.
uint64_t P2pRingWriter::position_of(std::size_t payload) const {
  const uint64_t offset = next_ % data_bytes_;
  return offset + payload > data_bytes_ ? next_ + data_bytes_ - offset : next_;
}

bool P2pRingWriter::has_room(std::size_t payload) const {
  if (written_ - consumed_ >= kRingCells) return false;
  return payload == 0 || position_of(payload) + to_lines(payload) - free_ <= data_bytes_;
}

void P2pRingWriter::read_consumed() {
  const uint64_t consumed = head_->consumed.load(std::memory_order_acquire);
  // A hostile reader may store any number. One that goes back, or beyond what was written, would make this
  // rank overwrite or reuse the wrong cells, so the writer stops for good.
  if (consumed < consumed_ || consumed > written_) corrupt_ = true;
  if (corrupt_ || consumed == consumed_) return;
  consumed_ = consumed;
  // The end of the payload of the last consumed cell. All payload bytes before it are free, including skipped
  // ones.
  free_ = ends_[(consumed - 1) % kRingCells];
  // If the ring is empty, begin again at the start of the memory: what was used recently is still in the
  // caches.
  if (consumed == written_) next_ = free_ = (next_ + data_bytes_ - 1) / data_bytes_ * data_bytes_;
}

bool P2pRingWriter::fits(std::size_t payload) {
  // Reading `consumed` misses the cache, because the reader writes it. So it is read only if the record does
  // not fit, or often enough to find the ring empty and begin again at the start of the memory.
  if (!has_room(payload) || (payload > 0 && next_ - free_ >= data_bytes_ / 4)) read_consumed();
  return !corrupt_ && has_room(payload);
}

void P2pRingWriter::write(const RingRecord& record) {
  // fits() has read `consumed` with acquire order, so the reader has finished with this cell and these bytes.
  Cell& to = cell(written_);
  const std::size_t bytes = has_payload(record.kind) ? record.size : 0;
  if (is_inline(record.kind, bytes)) {
    if (bytes > 0) std::memcpy(static_cast<void*>(&to.words[3]), record.payload, bytes);
  } else {
    if (bytes > 0) {
      const uint64_t position = position_of(bytes);
      next_ = position + to_lines(bytes);
      copy_.copy(data_ + position % data_bytes_, record.payload, bytes);
      to.words[5].store(position % data_bytes_, relaxed);
    }
    to.words[3].store(record.size, relaxed);
    to.words[4].store(record.id, relaxed);
  }
  to.words[2].store(static_cast<uint64_t>(record.tag), relaxed);
  to.words[1].store(static_cast<uint64_t>(record.kind) | uint64_t{record.code} << 8 | uint64_t{bytes} << 32,
                    relaxed);
  ends_[written_ % kRingCells] = next_;
  // The stamp comes last: it publishes all that was stored above.
  to.words[0].store(++written_, std::memory_order_release);
}

bool P2pRingWriter::want_room(bool yes) {
  if (wants_room_ == yes) return false;
  wants_room_ = yes;
  head_->wants_room.store(yes ? 1 : 0, relaxed);
  // A lost wake-up is impossible: the writer sets `wants_room` and then reads `consumed` once more; release()
  // stores `consumed` and then reads `wants_room`. Both have a fence in between.
  if (yes) std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

// The writer may be hostile and may change the cell at any time. So each word is loaded once, into a local
// value, and the checked value is the one that is used. The payload can still change while it is copied; that
// harms only its content.
absl::StatusOr<RingRecord> P2pRingReader::peek() const {
  const Cell& from = cell(read_);
  const uint64_t word = from.words[1].load(relaxed);
  RingRecord record;
  const auto kind = static_cast<uint8_t>(word);
  if (!is_used(kind)) return absl::InvalidArgumentError(absl::StrCat("invalid record kind ", kind));
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
  // Without a payload, this word may be left over from the inline payload of an earlier message.
  const uint64_t position = bytes > 0 ? from.words[5].load(relaxed) : 0;
  // `bytes` is bounded before it is subtracted: a piece is shorter than the memory of a ring, so the
  // difference does not wrap around.
  if (bytes > (has_payload(record.kind) ? kRingPieceBytes : 0) || position > data_bytes_ - bytes)
    return absl::InvalidArgumentError(
        absl::StrCat("invalid payload of ", bytes, " bytes at position ", position));
  if (has_payload(record.kind)) record.size = bytes;
  record.payload = data_ + position;
  return record;
}

bool P2pRingReader::release(const RingRecord& record) {
  ++read_;
  if (has_payload(record.kind) && !is_inline(record.kind, record.size))
    unpublished_bytes_ += to_lines(record.size);
  // Leaving a part unpublished cannot block the writer: the part is less than an eighth of the cells and of
  // the payload memory, and that memory has room for four pieces. So once everything was read, the next piece
  // fits.
  if (read_ - published_ < kMaxUnpublishedCells && unpublished_bytes_ < data_bytes_ / kUnpublishedPart)
    return false;
  published_ = read_;
  unpublished_bytes_ = 0;
  // The fence pairs with the one in want_room(). Either this thread sees `wants_room` and wakes the writer,
  // or the writer sees the new `consumed`.
  head_->consumed.store(read_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return head_->wants_room.load(relaxed) != 0;
}

}  // namespace gradwire::collectives::cpu
