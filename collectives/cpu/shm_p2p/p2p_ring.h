#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

// One ring: what one rank has to say to another of its host, in memory that both have mapped. One end writes,
// the other reads. This file is the specification of what lies in the memory.
//
// A ring has kCells cells of one cache line, used in turn, and data_bytes bytes for payload that does not fit
// a cell. The writer fills a cell and then stores its stamp: how many cells there were before it, and 1. No
// cell ever holds another number there than its turns', so that nothing old looks new. The reader says in
// `consumed` how many cells it has done with, seldom. Where a payload lies its cell says; what the writer has
// free it knows from `consumed`. Words of a cell:
//
//   0  stamp
//   1  kind (8 bits), code (8), 0 (16), bytes of the payload (32)
//   2  tag
//   3  size; of kEager with up to kInlineBytes bytes the payload, to the end of the cell
//   4  id
//   5  where the payload lies
//
// Both ends may be hostile: what is read is bounded before it is used.
namespace gradwire::collectives::cpu {

// A frame (p2p/frame.h) as a ring carries it. Kinds that connections alone use are none of a ring's. The data
// of a message comes in pieces, each a kData record: after kBegin at once, before any other message; after
// kRts when it is asked for.
struct RingRecord {
  FrameKind kind = FrameKind::kEager;
  uint8_t code = 0;
  int64_t tag = 0;
  uint64_t size = 0;  // With kEager and kData: that of the payload.
  uint64_t id = 0;
  const char* payload = nullptr;
};

inline constexpr std::size_t kRingCells = 256;
inline constexpr std::size_t kRingInlineBytes = 40;
// A longer payload goes in several records.
inline constexpr std::size_t kRingPieceBytes = std::size_t{16} << 10;

class P2pRing {
 public:
  struct Cell {
    std::array<std::atomic<uint64_t>, 8> words;
  };
  struct Head {
    alignas(128) std::atomic<uint64_t> consumed;
    // The writer wants to be woken when there is room.
    alignas(128) std::atomic<uint32_t> wants_room;
  };
  static std::size_t bytes(std::size_t data_bytes) {
    return sizeof(Head) + kRingCells * sizeof(Cell) + data_bytes;
  }

  // `memory`: bytes(data_bytes) of it, zero at first. data_bytes: a multiple of 64, at least four pieces.
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

  // Whether a record with such a payload, of up to kRingPieceBytes, may be written now.
  bool fits(std::size_t payload);
  // REQUIRES: fits(), for the same payload: `record.size` bytes of a kEager or kData record.
  void write(const RingRecord& record);
  // Asks to be woken when there is room, and then look once more; or takes that back. Whether it was the
  // other way before.
  bool want_room(bool yes);
  // The reader says that it has read what was not written.
  bool spoilt() const { return spoilt_; }

 private:
  bool has_room(std::size_t payload) const;
  void read_consumed();
  uint64_t place_of(std::size_t payload) const;

  uint64_t written_ = 0;
  uint64_t consumed_ = 0;
  // Of all bytes ever used for payload, and left out at the end: where the next lies, and what is free again.
  uint64_t next_ = 0;
  uint64_t free_ = 0;
  std::array<uint64_t, kRingCells> ends_{};
  bool wants_ = false;
  bool spoilt_ = false;
};

// Not thread-safe but for Look.
class P2pRingReader : public P2pRing {
 public:
  explicit P2pRingReader(const P2pRing& ring) : P2pRing(ring) {}

  // Tells without a lock whether there is something new.
  struct Probe {
    const std::atomic<uint64_t>* word;
    uint64_t value;
    bool has_record() const { return word->load(std::memory_order_acquire) == value; }
  };
  Probe probe() const { return {cell(read_).words.data(), read_ + 1}; }
  bool has_record() const { return probe().has_record(); }

  // The next record, as it is until release(); its payload lies in the memory of the ring. InvalidArgument
  // for what is none. REQUIRES: has_record()
  absl::StatusOr<RingRecord> peek() const;
  // Done with it. Whether the writer must be woken.
  bool release(const RingRecord& record);
  // Whether the writer waits for room.
  bool is_full() const { return head_->wants_room.load(std::memory_order_relaxed) != 0; }

 private:
  uint64_t read_ = 0;
  uint64_t said_ = 0;
  std::size_t unsaid_bytes_ = 0;
};

}  // namespace gradwire::collectives::cpu
