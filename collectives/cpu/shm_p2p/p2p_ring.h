#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/base/copy/adaptive_copy.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

// A ring: a single-producer, single-consumer queue of records from one rank to another of its host, in memory
// that both have mapped. This file is the specification of that memory.
//
// A ring has kRingCells cells of one cache line each, used in turn, and data_bytes bytes for payloads that do
// not fit a cell. Publication works without locks:
// 1. The writer fills a cell, and then stores its stamp: 1 + the number of cells written before.
// 2. The reader waits until the stamp of its next cell has the expected value. No other value for this cell
//    is ever equal to it, so an old cell is not mistaken for a new one.
// 3. The reader stores in `consumed` how many cells it has processed. It does so only once in a while,
//    because the writer's next read of `consumed` misses the cache.
// 4. The writer derives from `consumed` which cells and payload bytes are free.
//
// Words of a cell:
//
//   0  stamp
//   1  kind (8 bits), code (8), 0 (16), bytes of the payload (32)
//   2  tag
//   3  size; for kEager with up to kRingInlineBytes bytes the payload, to the end of the cell
//   4  id
//   5  position of the payload
//
// Either end may be hostile: every value is checked against its bounds before it is used.
namespace gradwire::collectives::cpu {

// A frame (p2p/frame.h) as a ring carries it. Frames that only connections use are not valid in a ring. The
// data of a message is sent in pieces, each a kData record: after kBegin at once, before any other message;
// after kRts when the receiver has sent kCts.
struct RingRecord {
  FrameKind kind = FrameKind::kEager;
  uint8_t code = 0;
  int64_t tag = 0;
  uint64_t size = 0;  // For kEager and kData the size of the payload.
  uint64_t id = 0;
  const char* payload = nullptr;
};

inline constexpr std::size_t kRingCells = 256;
inline constexpr std::size_t kRingInlineBytes = 40;
// A longer payload is split into several records.
inline constexpr std::size_t kRingPieceBytes = std::size_t{16} << 10;

class P2pRing {
 public:
  struct Cell {
    std::array<std::atomic<uint64_t>, 8> words;
  };
  struct Head {
    alignas(128) std::atomic<uint64_t> consumed;
    // 1 if the writer must be woken when there is room.
    alignas(128) std::atomic<uint32_t> wants_room;
  };
  static std::size_t bytes(std::size_t data_bytes) {
    return sizeof(Head) + kRingCells * sizeof(Cell) + data_bytes;
  }

  // `memory`: bytes(data_bytes) bytes, initially zero. data_bytes: a multiple of 64, at least four pieces.
  P2pRing(char* memory, std::size_t data_bytes)
      : head_(reinterpret_cast<Head*>(memory)),
        cells_(reinterpret_cast<Cell*>(memory + sizeof(Head))),
        data_(memory + sizeof(Head) + kRingCells * sizeof(Cell)),
        data_bytes_(data_bytes) {}

 protected:
  Cell& cell(uint64_t number) const { return cells_[number % kRingCells]; }

  Head* head_;
  Cell* cells_;
  char* data_;
  std::size_t data_bytes_;
};

static_assert(sizeof(P2pRing::Cell) == 64);

// Not thread-safe.
class P2pRingWriter : public P2pRing {
 public:
  explicit P2pRingWriter(const P2pRing& ring) : P2pRing(ring) {}

  // Whether there is room for a record with a payload of this size, at most kRingPieceBytes.
  bool fits(std::size_t payload);
  // Writes a record. REQUIRES: fits() for its payload, which has `record.size` bytes for kEager and kData,
  // and 0 bytes otherwise.
  void write(const RingRecord& record);
  // Asks the reader to wake this writer when there is room, or withdraws that. Returns whether that changed;
  // after asking, the writer must check for room once more.
  bool want_room(bool yes);
  // The reader reports that it has read records that were not written.
  bool corrupt() const { return corrupt_; }

 private:
  bool has_room(std::size_t payload) const;
  void read_consumed();
  uint64_t position_of(std::size_t payload) const;

  uint64_t written_ = 0;
  uint64_t consumed_ = 0;
  // Positions in the endless sequence of payload bytes, including those skipped at the end of the memory:
  // where the next payload begins, and up to where memory is free again.
  uint64_t next_ = 0;
  uint64_t free_ = 0;
  std::array<uint64_t, kRingCells> ends_{};
  bool wants_room_ = false;
  bool corrupt_ = false;
  AdaptiveCopy copy_;
};

// Not thread-safe, except Probe.
class P2pRingReader : public P2pRing {
 public:
  explicit P2pRingReader(const P2pRing& ring) : P2pRing(ring) {}

  // Checks without a lock whether the reader has a new record.
  struct Probe {
    const std::atomic<uint64_t>* word;
    uint64_t value;
    bool has_record() const { return word->load(std::memory_order_acquire) == value; }
  };
  Probe probe() const { return {cell(read_).words.data(), read_ + 1}; }
  bool has_record() const { return probe().has_record(); }

  // Returns the next record, which is valid until release(); its payload is in the memory of the ring.
  // InvalidArgument if the record is malformed. REQUIRES: has_record()
  absl::StatusOr<RingRecord> peek() const;
  // Frees the record. Returns whether the writer must be woken.
  bool release(const RingRecord& record);
  // Whether the writer waits for room.
  bool is_full() const { return head_->wants_room.load(std::memory_order_relaxed) != 0; }

 private:
  uint64_t read_ = 0;
  uint64_t published_ = 0;
  std::size_t unpublished_bytes_ = 0;
};

}  // namespace gradwire::collectives::cpu
