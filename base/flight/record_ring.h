#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace gradwire {

// The last records of something that happens often, for flight records. A record is a head of 32 bits, which
// does not change, and kWords words. Adding and reading take no lock and allocate nothing, so a signal
// handler may read the ring. Thread-safe. The memory is allocated once: (kWords + 1) * 8 bytes, rounded up to
// 64, for each record.
//
// Writers and readers do not lock. Problem: a reader must notice that a record changes while it reads it.
// Each slot is a sequence lock:
//   1. add() sets the mark of the slot to 0: the slot is invalid.
//   2. It writes the words with release order. A reader that loads one of the new words with acquire order
//      also sees the 0 of step 1 when it reads the mark for the second time.
//   3. It sets the mark to that of the new record.
// read() reads the mark, the words, and the mark again. It accepts the record only if both are the expected
// mark.
template <std::size_t kWords>
class RecordRing {
 public:
  using Words = std::array<uint64_t, kWords>;

  // Keeps at least `capacity` records: rounded up to a power of two.
  explicit RecordRing(std::size_t capacity)
      : mask_(std::bit_ceil(std::max<std::size_t>(capacity, 1)) - 1),
        slots_(std::make_unique<Slot[]>(mask_ + 1)) {}

  std::size_t capacity() const { return mask_ + 1; }
  // The number of records that were added; the next one gets this number.
  uint64_t added() const { return next_.load(std::memory_order_acquire); }
  // The number of the oldest record that may still be in the ring.
  uint64_t first() const {
    const uint64_t next = added();
    return next > capacity() ? next - capacity() : 0;
  }

  // Adds a record, in place of the oldest one, and returns its number.
  uint64_t add(uint32_t head, const Words& words) {
    const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    Slot& slot = slots_[number & mask_];
    slot.mark.store(0, std::memory_order_relaxed);
    // Unrolled, the words of a caller that has just made them come from registers.
#pragma GCC unroll 32
    for (std::size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
    slot.mark.store(mark_of(number) | head, std::memory_order_release);
    return number;
  }

  // A word of a record, for set(); 0 if the record has been overwritten. One thread at a time may change a
  // record.
  uint64_t get(uint64_t number, std::size_t word) const {
    const Slot& slot = slots_[number & mask_];
    return holds(slot, number) ? slot.words[word].load(std::memory_order_relaxed) : 0;
  }
  // Changes a word of a record. Does nothing and returns false if the record has been overwritten. The check
  // and the store are not one step, so in theory a record that is overwritten in between gets a wrong word.
  // That affects only what is shown.
  bool set(uint64_t number, std::size_t word, uint64_t value) {
    Slot& slot = slots_[number & mask_];
    if (!holds(slot, number)) return false;
    slot.words[word].store(value, std::memory_order_release);
    return true;
  }

  // Calls `change` with the words of a record. Does nothing and returns false if the record has been
  // overwritten. As for set(), the check and the changes are not one step.
  template <class Change>
  bool change(uint64_t number, const Change& change) {
    Slot& slot = slots_[number & mask_];
    if (!holds(slot, number)) return false;
    change(slot.words);
    return true;
  }

  // Reads a record. Returns false if it is not in the ring, or is written at this moment. Async-signal-safe.
  bool read(uint64_t number, uint32_t& head, Words& words) const {
    const Slot& slot = slots_[number & mask_];
    const uint64_t mark = slot.mark.load(std::memory_order_acquire);
    if (mark >> kHeadBits != mark_of(number) >> kHeadBits) return false;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    head = static_cast<uint32_t>(mark);
    return slot.mark.load(std::memory_order_relaxed) == mark;
  }

 private:
  static constexpr int kHeadBits = 32;
  struct alignas(64) Slot {
    // The number of the record, in 32 bits, and its head; 0 while the record is being written.
    std::atomic<uint64_t> mark{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  // Never 0. Has 31 bits of the number: a ring has fewer records than these can distinguish.
  static uint64_t mark_of(uint64_t number) { return (number << 1 | 1) << kHeadBits; }
  static bool holds(const Slot& slot, uint64_t number) {
    return slot.mark.load(std::memory_order_relaxed) >> kHeadBits == mark_of(number) >> kHeadBits;
  }

  const uint64_t mask_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace gradwire
